"""The `evaluation` step: one milestone, its held-out text and its suites, as one Ray task (jobs.evaluation)."""

from __future__ import annotations

import time
from typing import Any

from curriculum.schema import EvaluationSpec, Recipe
from jobs.ray_session import call_remote
from jobs.steps.tokenizer import tokenizer_key
from pipeline.dag.runner import StepContext
from pipeline.dag.store import StepStore
from pipeline.storage import Storage


def execute(recipe: Recipe, context: StepContext) -> dict[str, Any]:
    """The receipt holds the whole result: it is small, and its existence means it is complete."""
    identity = context.step.identity
    trained = next(step for step in context.steps.values() if step.fingerprint == identity["trajectory"])
    spec = EvaluationSpec(
        suites=tuple(identity["suites"]), limit=identity["limit"], heldout_tokens=identity["heldout_tokens"]
    )
    heldout = {source: context.steps[f"shards-{source}"].key for source in identity["heldout"]}
    result = call_remote(
        _evaluate,
        recipe,
        spec,
        context.storage.url,
        trained.key,
        identity["step"],
        identity["sequence_length"],
        heldout,
        tokenizer_key(context),
        context.step.key,
        context.attempt,
        num_cpus=recipe.runtime.cpus_per_worker,
        num_gpus=recipe.runtime.gpus_per_worker,
        context=context,
    )
    return {"stage": trained.name, "step": identity["step"], "result": result}


def _evaluate(
    recipe: Recipe,
    spec: EvaluationSpec,
    storage_url: str,
    trajectory: str,
    milestone: int,
    sequence_length: int,
    heldout: dict[str, str],
    tokenizer: str,
    output: str,
    attempt: int,
) -> dict[str, Any]:
    import torch

    from jobs.evaluation.run import evaluate
    from jobs.milestones import load_milestone
    from jobs.retention import pinned
    from ncp_model import build_model
    from pipeline.data.heldout import heldout_documents
    from pipeline.data.tokenizer import Tokenizer

    torch.set_num_threads(max(1, recipe.runtime.local_cpus))
    storage = Storage(storage_url)
    model = build_model(recipe.model, device="meta")
    model.to_empty(device="cuda" if recipe.runtime.gpus_per_worker else "cpu")
    with pinned(storage, trajectory, milestone, "evaluation"):  # training may go on and prune beside this
        load_milestone(storage, trajectory, milestone, model, None)
    model.eval()
    store = StepStore(storage, output)
    encoder = Tokenizer.from_bytes(storage.read_bytes(tokenizer))
    reported = 0.0

    def report(phase: str, done: int, total: int) -> None:
        nonlocal reported
        if done == total or time.monotonic() - reported > 1.0:
            reported = time.monotonic()
            store.write_progress(attempt, {"unit": "requests", "done": done, "total": total, "phase": phase})

    return evaluate(
        model,
        tokenizer=encoder,
        tokenizer_sha256=encoder.sha256,
        heldout={source: heldout_documents(storage, output) for source, output in heldout.items()},
        spec=spec,
        sequence_length=sequence_length,
        mixtures={},
        progress=report,
    )
