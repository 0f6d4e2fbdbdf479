"""The `shards` step: one source, tokenized by Ray Data into Arrow shards (pipeline.data.staging)."""

from __future__ import annotations

from typing import Any

from curriculum.schema import Recipe
from jobs.cluster.preflight import staging_demand
from jobs.cluster.ray_session import call_remote
from jobs.steps.cleaning import cleaned
from jobs.steps.tokenizer import pinned, tokenizer_key
from pipeline.dag.lease import LeaseBook
from pipeline.dag.runner import StepContext
from pipeline.dag.store import StepStore
from pipeline.data.pins import Pin
from pipeline.storage import Storage


def execute(recipe: Recipe, context: StepContext) -> dict[str, Any]:
    """Stages the source. Finished groups of an earlier attempt are kept: a shard is a pure function of its input."""
    source = context.step.identity["source"]
    pin, cleaning = cleaned(context, source) or (
        pinned(recipe, context.storage, source, context.step.identity["content"]),
        None,
    )
    return call_remote(
        _stage,
        recipe,
        source,
        pin,
        cleaning,
        context.storage.url,
        context.step.key,
        context.attempt,
        tokenizer_key(context),
        demand=staging_demand(recipe.runtime),
        context=context,
    )


def _stage(
    recipe: Recipe,
    source: str,
    pin: Pin,
    cleaning: dict[str, Any] | None,
    storage_url: str,
    output: str,
    attempt: int,
    tokenizer: str,
) -> dict[str, Any]:
    """Runs as a Ray task, so that Ray Data's machinery stays out of the driver."""
    from pipeline.data.staging import stage_source  # brings ray

    storage = Storage(storage_url)
    store, leases = StepStore(storage, output), LeaseBook(storage, output)
    manifest = stage_source(
        storage=storage,
        output=output,
        pin=pin,
        spec=recipe.sources[source],
        data=recipe.data,
        tokenizer_key=tokenizer,
        parallelism=recipe.runtime.staging_tasks,
        cpus_per_task=recipe.runtime.staging_cpus_per_task,
        cleaning=cleaning,
        progress=lambda progress: store.write_progress(attempt, _shown(progress)),
        is_current=lambda: leases.highest() == attempt,
    )
    return {
        "tokens": manifest.tokens,
        "shards": len(manifest.shards),
        "bytes_read": sum(file.size for file in pin.files),
        "counters": manifest.counters.to_json(),
    }


def _shown(progress: dict[str, Any]) -> dict[str, Any]:
    """Staging's progress under the names that every step uses."""
    return {
        "unit": "groups",
        "done": progress["groups_done"],
        "total": progress["groups"],
        "eta_seconds": progress["eta_seconds"],
        "phase": f"{progress['documents']:,} documents, {progress['tokens']:,} tokens, "
        f"{progress['documents_per_second']:,.0f} documents/s, {progress['tokens_per_second']:,.0f} tokens/s",
    }
