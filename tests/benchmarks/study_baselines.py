"""NCP against its baselines: trains the runs of docs/studies/ncp_against_baselines.md one after another, resumably.

    python -m tests.benchmarks.study_corpus --to study-corpus
    python -m tests.benchmarks.study_baselines --work study-work --plan tests/benchmarks/study_plan.csv

A line of the plan is a run: its name, the phase it belongs to, a bundled recipe, a seed, and overrides as `ncp run` takes
them. Model, data, order, schedule, optimizer and codebook initialisation are those of `ncp run` on the same recipe and
overrides; only the loop around them is this file's, in one process without Ray or sharding, so that a small machine does
nothing but train. A run that was killed goes on from its last state; one that is finished is not repeated; lines may be
added to the plan while it runs. While WORK/PAUSE exists the trainer sleeps.

Results: WORK/runs/NAME.json with the losses of every step and the nats of every held-out document (study_tables.py).
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from curriculum.load import load_recipe
from curriculum.schedule import learning_rate
from curriculum.schema import Recipe, StageSpec
from curriculum.tokens import stage_steps
from jobs.evaluation.forward import token_nats
from jobs.evaluation.heldout import HeldoutDocument, select_documents, windows
from ncp_model.flops import flops_per_token, total_parameters
from ncp_model.init import initialize_codebooks
from ncp_model.losses import LossDenominators, loss_counts
from ncp_model.metrics import CodebookUsage, NextConceptScore
from ncp_model.model import NCPModel, build_model
from ncp_model.optim import Optimizers, build_optimizers, clip_grad_norm
from pipeline.data.finish import finish_source
from pipeline.data.groups import plan_groups
from pipeline.data.heldout import heldout_documents
from pipeline.data.loader import WindowLoader
from pipeline.data.pins import make_pin
from pipeline.data.tokenize_group import tokenize_group
from pipeline.data.tokenizer import Tokenizer, train_bpe
from pipeline.data.training_text import training_texts
from pipeline.storage import Storage

SOURCE = "study-prose"
CODEBOOK_WINDOWS = 16  # as jobs.training.train_loop
SECONDS_BETWEEN_STATES = 120.0
EVALUATION_WINDOWS = 32
TUNED = "tuned"
"""In a plan's overrides, `lr=tuned`: the peak rate that did best for this recipe in the phase `tuning`."""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A line of the plan."""

    name: str
    phase: str
    recipe: str
    seed: int
    overrides: tuple[str, ...]


def read_plan(path: Path) -> list[PlannedRun]:
    """The runs, in the order of the file. Raises ValueError for a name used twice."""
    with path.open(newline="") as file:
        lines = list(csv.DictReader(line for line in file if not line.startswith("#")))
    runs = [
        PlannedRun(
            name=row["name"],
            phase=row["phase"],
            recipe=row["recipe"],
            seed=int(row["seed"]),
            overrides=tuple(row["overrides"].split()),
        )
        for row in lines
    ]
    names = [run.name for run in runs]
    if doubled := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{path}: run names used twice: {', '.join(sorted(doubled))}")
    return runs


def tuned_rate(work: Path, recipe: str) -> float:
    """The learning rate of the recipe's tuning run with the lowest held-out loss."""
    trials = [json.loads(path.read_text()) for path in (work / "runs").glob("*.json")]
    trials = [trial for trial in trials if trial["phase"] == "tuning" and trial["recipe"] == recipe]
    if not trials:
        raise ValueError(f"lr=tuned: no run of the phase `tuning` with recipe {recipe} is finished")
    return min(trials, key=lambda trial: trial["heldout_nats_per_token"])["lr"]


def stage_text(work: Path, recipe: Recipe, location: str) -> tuple[Storage, str]:
    """Shards of the study's text under WORK/store, made once, as the DAG's steps make them."""
    storage = Storage(str(work / "store"))
    output = "shards"
    pin = make_pin(storage, SOURCE, recipe.sources[SOURCE], location)
    receipt = work / "store" / "staged.json"
    if not receipt.exists():
        training = recipe.tokenizer.train
        assert training is not None
        texts = training_texts(storage, pin, recipe.data, training.max_bytes_per_source)
        tokenizer = Tokenizer(train_bpe(texts, training.vocab_size))
        receipts = [
            tokenize_group(
                storage=storage,
                output=output,
                root=pin.open_root(storage),
                source=SOURCE,
                group=group,
                special_tokens="text",
                data=recipe.data,
                tokenizer=tokenizer,
            )
            for group in plan_groups(pin, recipe.data)
        ]
        finish_source(storage, output, pin, recipe.data, tokenizer, receipts)
        receipt.write_text(json.dumps({"pin": pin.digest, "tokenizer": tokenizer.sha256}) + "\n")
    return storage, output


class StudyRun:
    """One run: its model, optimizers and the history of its losses."""

    def __init__(self, planned: PlannedRun, work: Path, storage: Storage, output: str) -> None:
        self.planned, self.work, self.storage, self.output = planned, work, storage, output
        overrides = [f"stage1.seed={planned.seed}"]
        for override in planned.overrides:
            if override == f"lr={TUNED}":
                override = f"stage1.optimizer.lr={tuned_rate(work, planned.recipe)}"
            overrides.append(override)
        self.recipe = load_recipe(planned.recipe, overrides)
        self.stage: StageSpec = self.recipe.stages["stage1"]
        stage = self.stage
        self.loader = WindowLoader(
            storage=storage,
            outputs={SOURCE: output},
            weights=stage.mixture,
            block=stage.order_block,
            seed=stage.seed,
            sequence_length=stage.sequence_length,
            global_batch_tokens=stage.global_batch_tokens,
            packing=stage.packing,
        )
        self.model: NCPModel = build_model(self.recipe.model, seed=stage.seed)
        self.optimizers: Optimizers = build_optimizers(self.model, stage.optimizer)
        self.history: list[list[float]] = []
        self.seconds = 0.0
        if self.state_path.exists():
            self._load()
        elif self.recipe.model.concept.enabled and self.recipe.model.concept.codebook_init == "data":
            initialize_codebooks(self.model, self.loader.fixed_batch(CODEBOOK_WINDOWS))

    @property
    def state_path(self) -> Path:
        return self.work / "states" / f"{self.planned.name}.pt"

    @property
    def result_path(self) -> Path:
        return result_path(self.work, self.planned)

    def train(self) -> None:
        """Take the steps that are left."""
        self.model.train()
        steps = stage_steps(self.stage)
        saved = time.monotonic()
        while len(self.history) < steps:
            wait_while_paused(self.work)
            begun = time.process_time()
            self.history.append(self.step(len(self.history)))
            self.seconds += time.process_time() - begun
            done = len(self.history)
            if done % 50 == 0 or done == steps:
                ntp = float(np.mean([row[0] for row in self.history[-50:]]))
                print(f"{self.planned.name} {done}/{steps} loss {ntp:.4f} {self.seconds:.0f} s", flush=True)
            if time.monotonic() - saved > SECONDS_BETWEEN_STATES or done == steps:
                self._save()
                saved = time.monotonic()

    def step(self, step: int) -> list[float]:
        """Optimizer step `step` on its global batch: mean NTP, NCP and VQ losses, and the gradient norm."""
        batches = self.loader.batch(step, 0, 1, self.recipe.runtime.micro_batch_size)
        chunk = self.recipe.model.concept.chunk_size
        counts = [loss_counts(batch.labels, chunk, batch.doc_starts) for batch in batches]
        total = LossDenominators(
            **{name: sum(getattr(count, name) for count in counts) for name in ("ntp", "ncp", "vq")}
        )
        sums = np.zeros(3)
        self.optimizers.zero_grad()
        for batch in batches:
            out = self.model(
                batch.input_ids, labels=batch.labels, doc_starts=batch.doc_starts, denominators=total
            )
            out.loss.backward()
            sums += [float(term.detach()) for term in (out.ntp, out.ncp, out.vq)]
        norm = float(clip_grad_norm(self.model, self.stage.optimizer.clip_norm))
        self.optimizers.step(learning_rate(self.stage, step))
        means = sums / np.maximum([float(total.ntp), float(total.ncp), float(total.vq)], 1.0)
        return [*means.tolist(), norm]

    def result(self) -> dict[str, Any]:
        """What the tables need of a finished run."""
        documents = select_documents(
            heldout_documents(self.storage, self.output), self.stage.evaluation.heldout_tokens
        )
        nats, concept = heldout_nats(self.model, documents, self.stage.sequence_length, self.loader.eos_id)
        tokens = np.array([len(document.input_ids) for document in documents])
        sizes = np.array([document.n_bytes for document in documents])
        flops = flops_per_token(self.recipe.model, self.stage.sequence_length).total
        return {
            **dataclasses.asdict(self.planned),
            "lr": self.stage.optimizer.lr,
            "tokens": len(self.history) * self.stage.global_batch_tokens,
            "tokens_available": sum(source.windows for source in self.loader.sources.values())
            * self.stage.sequence_length,
            "parameters": total_parameters(self.recipe.model),
            "flops_per_token": flops,
            "cpu_seconds": self.seconds,
            "heldout_nats_per_token": float(nats[False].sum() / tokens.sum()),
            "heldout_bits_per_byte": float(nats[False].sum() / sizes.sum() / np.log(2)),
            "zero_concept_nats_per_token": float(nats[True].sum() / tokens.sum()) if True in nats else None,
            **concept,
            "documents": [
                {"document": d.doc_key, "tokens": int(t), "bytes": int(b), "nats": float(n)}
                for d, t, b, n in zip(documents, tokens, sizes, nats[False], strict=True)
            ],
            "history": {
                name: [round(row[i], 5) for row in self.history]
                for i, name in enumerate(("ntp", "ncp", "vq", "grad_norm"))
            },
        }

    def _save(self) -> None:
        self.state_path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.state_path.with_suffix(".tmp")
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in self.optimizers.optimizers],
                "history": self.history,
                "seconds": self.seconds,
            },
            temporary,
        )
        os.replace(temporary, self.state_path)

    def _load(self) -> None:
        state = torch.load(self.state_path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, values in zip(self.optimizers.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        self.history, self.seconds = state["history"], state["seconds"]


@torch.inference_mode()
def heldout_nats(
    model: NCPModel, documents: Sequence[HeldoutDocument], length: int, eos_id: int
) -> tuple[dict[bool, NDArray[np.float64]], dict[str, float]]:
    """Nats of each document, with and (key True) without the model's concepts, and the health of its concepts.

    Windows, targets and units are those of `jobs.evaluation.heldout`; here the documents are kept apart, so that two
    runs can be compared document by document.
    """
    stream = np.concatenate([[eos_id], *(document.input_ids for document in documents)]).astype(np.int64)
    starts = np.cumsum([0, *(len(document.input_ids) for document in documents[:-1])])
    concept = model.spec.concept
    passes = (False, True) if concept.enabled else (False,)
    nats = {zero: np.empty(len(stream) - 1) for zero in passes}
    score, usage = NextConceptScore(), CodebookUsage(concept.segments, concept.entries)
    model.eval()
    for start, inputs, targets in windows(stream, length, EVALUATION_WINDOWS):
        labels = torch.from_numpy(targets.copy())
        for zero in passes:
            out = model(torch.from_numpy(inputs.copy()), labels=labels, zero_concept=zero, return_logits=True)
            assert out.logits is not None
            nats[zero][start : start + inputs.size] = token_nats(out.logits, labels).flatten().numpy()
            if concept.enabled and not zero and out.concept is not None:
                score.update(out)
                usage.update(out)
    health = {**score.compute(), **usage.compute()} if concept.enabled else {}
    return {zero: np.add.reduceat(values, starts) for zero, values in nats.items()}, health


def result_path(work: Path, planned: PlannedRun) -> Path:
    return work / "runs" / f"{planned.name}.json"


def wait_while_paused(work: Path) -> None:
    """Sleep as long as WORK/PAUSE exists."""
    while (work / "PAUSE").exists():
        time.sleep(2.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--work", type=Path, default=Path("study-work"))
    parser.add_argument("--plan", type=Path, default=Path(__file__).with_name("study_plan.csv"))
    parser.add_argument("--text", default="study-corpus", help="folder laid out by study_corpus")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    work: Path = arguments.work.resolve()
    (work / "runs").mkdir(parents=True, exist_ok=True)
    first = load_recipe(read_plan(arguments.plan)[0].recipe)
    storage, output = stage_text(work, first, arguments.text)
    while True:
        left = [run for run in read_plan(arguments.plan) if not result_path(work, run).exists()]
        if not left:
            break
        run = StudyRun(left[0], work, storage, output)
        if run.recipe.tokenizer != first.tokenizer:
            raise ValueError(
                f"{arguments.plan}: {left[0].name} has another tokenizer than the first run, whose shards lie in {work}; "
                "give it a plan and a --work of its own"
            )
        run.train()
        result = run.result()
        temporary = run.result_path.with_suffix(".tmp")
        temporary.write_text(json.dumps(result) + "\n")
        os.replace(temporary, run.result_path)
        run.state_path.unlink(missing_ok=True)
        print(
            f"== {left[0].name}: held-out {result['heldout_nats_per_token']:.4f} nats/token, "
            f"{result['heldout_bits_per_byte']:.4f} bits/byte, {result['cpu_seconds']:.0f} CPU-s",
            flush=True,
        )


if __name__ == "__main__":
    main()
