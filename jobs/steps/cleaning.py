"""The `cleaning` step: quality filters and deduplication of one source before it is tokenized (pipeline.data.cleaning).

The tokenizer is trained on the source as it was: cleaning only decides what training sees.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from curriculum.schema import Recipe
from jobs.cluster.preflight import staging_demand
from jobs.cluster.ray_session import call_remote
from jobs.steps.tokenizer import pinned
from pipeline.dag.runner import StepContext
from pipeline.dag.store import StepStore
from pipeline.data.pins import Pin, PinnedFile
from pipeline.storage import Storage


def execute(recipe: Recipe, context: StepContext) -> dict[str, Any]:
    """The receipt holds the cleaned source's pin, and how many documents each filter removed."""
    source = context.step.identity["source"]
    pin = pinned(recipe, context.storage, source, context.step.identity["content"])
    return call_remote(
        _clean,
        recipe,
        source,
        pin,
        context.storage.url,
        context.step.key,
        demand=staging_demand(recipe.runtime),
        context=context,
    )


def cleaned(context: StepContext, source: str) -> tuple[Pin, dict[str, Any]] | None:
    """The pin and the counts of a source that this run cleans; None if it does not."""
    step = context.steps.get(f"clean-{source}")
    if step is None:
        return None
    receipt = StepStore(context.storage, step.key).receipt()
    if receipt is None:
        raise RuntimeError(f"{step.name} has no receipt; it must be done before this step")
    files = tuple(PinnedFile(**file) for file in receipt["pin"]["files"])
    return Pin(**{**receipt["pin"], "files": files}), receipt["counts"]


def _clean(recipe: Recipe, source: str, pin: Pin, storage_url: str, output: str) -> dict[str, Any]:
    """Runs as a Ray task, so that datatrove stays out of the driver."""
    from pipeline.data.cleaning import clean_source  # brings ray

    clean = recipe.sources[source].clean
    assert clean is not None
    done = clean_source(
        storage=Storage(storage_url),
        output=output,
        pin=pin,
        spec=clean,
        data=recipe.data,
        parallelism=recipe.runtime.staging_tasks,
        cpus_per_task=recipe.runtime.staging_cpus_per_task,
        text_key=recipe.sources[source].text_key,
    )
    return {
        "pin": asdict(done.pin),
        "bytes_read": sum(file.size for file in pin.files),
        "counts": done.counts,
    }
