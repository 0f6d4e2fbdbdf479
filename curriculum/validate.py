"""What no single field of a recipe can know: checks across fields, each with the key, the value and the fix."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields

from curriculum.errors import RecipeError, nearest
from curriculum.mixture import block_counts
from curriculum.schema import Recipe, StageSpec
from curriculum.tokens import ceil_div, horizon_steps, stage_steps

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")
TOKEN_TYPES = ("", "uint8", "uint16", "uint32", "int32", "int64")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_IN_PROJECTS = re.compile(r"[/\\#?%:\s]")
"""What W&B takes in no project's name."""
MAX_EVALUATIONS = 1000
"""Milestones of one stage that are evaluated."""
BUILTIN_SOURCES = ("stdlib-code", "stdlib-prose")


def validate(recipe: Recipe) -> None:
    """Raise RecipeError for a recipe that could not run; the first problem found is named."""
    _check_name("recipe", recipe.recipe)
    if not recipe.stages:
        raise RecipeError("stages: empty; give at least one stage")
    if not recipe.sources:
        raise RecipeError("sources: empty; give at least one source")
    for name, source in recipe.sources.items():
        _check_name(f"sources.{name}", name)
        _one_of(f"sources.{name}.special_tokens", source.special_tokens, ("text", "keep"))
        _one_of(f"sources.{name}.token_dtype", source.token_dtype, TOKEN_TYPES)
        if source.builtin is not None:
            _one_of(f"sources.{name}.builtin", source.builtin, BUILTIN_SOURCES)
    origins = {stage.init.from_ for stage in recipe.stages.values()}
    for name in recipe.runtime.locations:
        if name not in recipe.sources and name not in origins:
            raise RecipeError(f"runtime.locations.{name}: no such source; {nearest(name, recipe.sources)}")
    _check_tokenizer(recipe)
    _check_mixes(recipe)
    for part in ("param", "reduce"):
        _one_of(f"precision.{part}", getattr(recipe.precision, part), ("float32", "bfloat16"))
    _check_runtime(recipe)
    top_level = {field.name for field in fields(Recipe)}
    earlier: list[str] = []
    for name, stage in recipe.stages.items():
        _check_name(f"stages.{name}", name)
        if name in top_level:
            raise RecipeError(
                f"stages.{name}: {name!r} is a section of the recipe; choose another stage name"
            )
        _check_stage(recipe, name, stage, earlier)
        earlier.append(name)


def _check_stage(recipe: Recipe, name: str, stage: StageSpec, earlier: list[str]) -> None:
    key = f"stages.{name}"
    length, chunk = stage.sequence_length, recipe.model.concept.chunk_size
    if recipe.model.concept.enabled and length % chunk:
        raise RecipeError(
            f"{key}.sequence_length: {length} is not divisible by model.concept.chunk_size {chunk}; use {length // chunk * chunk or chunk}"
        )
    if recipe.model.concept.enabled and length < 2 * chunk:
        raise RecipeError(
            f"{key}.sequence_length: {length} holds a single chunk of model.concept.chunk_size {chunk}, so no next concept is "
            f"ever predicted; use at least {2 * chunk}"
        )
    if length > recipe.model.max_sequence_length:
        raise RecipeError(
            f"{key}.sequence_length: {length} exceeds model.max_sequence_length {recipe.model.max_sequence_length}; raise that or lower this"
        )
    if stage.global_batch_tokens % length:
        raise RecipeError(
            f"{key}.global_batch_tokens: {stage.global_batch_tokens} is not a multiple of sequence_length {length}; "
            f"use {max(1, stage.global_batch_tokens // length) * length}"
        )
    if stage.tokens < stage.global_batch_tokens:
        raise RecipeError(
            f"{key}.tokens: {stage.tokens} is less than one batch ({stage.global_batch_tokens}); raise it or lower global_batch_tokens"
        )
    if stage.horizon_tokens is not None and stage.horizon_tokens < stage.global_batch_tokens:
        raise RecipeError(
            f"{key}.horizon_tokens: {stage.horizon_tokens} is less than one batch; use at least tokens"
        )
    if not stage.mixture:
        raise RecipeError(f"{key}.mixture: empty; name at least one source and its weight")
    for source in stage.mixture:
        if source not in recipe.sources:
            raise RecipeError(f"{key}.mixture.{source}: no such source; {nearest(source, recipe.sources)}")
    if stage.order_block < len(stage.mixture):
        raise RecipeError(
            f"{key}.order_block: {stage.order_block} is less than the {len(stage.mixture)} sources; use 65536"
        )
    _check_shares(f"{key}.mixture", stage.mixture, stage.order_block)
    _one_of(f"{key}.schedule.kind", stage.schedule.kind, ("cosine", "linear", "constant"))
    _check_schedule(key, stage)
    _one_of(f"{key}.packing", stage.packing, ("stream", "doc"))
    _one_of(f"{key}.on_shortage", stage.on_shortage, ("error", "repeat"))
    _one_of(f"{key}.init.load", stage.init.load, ("weights", "weights+optimizer", "full"))
    _one_of(f"{key}.evaluation.when", stage.evaluation.when, ("before_next_stage", "beside"))
    if stage.evaluation.when == "beside" and stage.gate is not None:
        raise RecipeError(
            f"{key}.evaluation.when: 'beside' and {key}.gate exclude each other: the gate on {stage.gate.metric!r} has to "
            "know the evaluation before the next stage begins; use before_next_stage, or leave the gate out"
        )
    _check_evaluation(recipe, key, stage)
    if stage.gate is not None and stage.gate.max is None and stage.gate.min is None:
        raise RecipeError(f"{key}.gate: {stage.gate.metric!r} has no bound; give gate.max or gate.min")
    if stage.gate is not None and _above(stage.gate.min, stage.gate.max):
        raise RecipeError(
            f"{key}.gate.min: {stage.gate.min:g} is above gate.max {stage.gate.max:g}, so nothing could pass; swap them"
        )
    if stage.init.from_ is not None:
        _check_init(recipe, name, stage, stage.init.from_, earlier)


def _check_shares(key: str, weights: Mapping[str, float], block: int) -> None:
    """Every source gets a window of each block at least."""
    try:
        block_counts(weights, block)
    except ValueError as error:
        raise RecipeError(f"{key.removesuffix('.mixture')}.{error}") from error


def _check_schedule(key: str, stage: StageSpec) -> None:
    schedule = stage.schedule
    if (schedule.half_from_step is None) != (schedule.half_horizon_tokens is None):
        raise RecipeError(
            f"{key}.schedule.half_from_step: needs half_horizon_tokens beside it; give both or neither"
        )
    end = max(horizon_steps(stage), stage_steps(stage) if schedule.kind == "constant" else 0)
    if schedule.half_from_step is not None and schedule.half_horizon_tokens is not None:
        if schedule.kind != "cosine":
            raise RecipeError(
                f"{key}.schedule.half_from_step: is for a cosine; schedule.kind is {schedule.kind}"
            )
        end = ceil_div(schedule.half_horizon_tokens, stage.global_batch_tokens)
        if not schedule.warmup_steps <= schedule.half_from_step < end:
            raise RecipeError(
                f"{key}.schedule.half_from_step: {schedule.half_from_step} is not between the end of warm-up "
                f"({schedule.warmup_steps}) and the step where half_horizon_tokens ends ({end})"
            )
    if schedule.warmup_steps > end:
        raise RecipeError(
            f"{key}.schedule.warmup_steps: {schedule.warmup_steps} is beyond the {end} steps of the schedule; lower it, or raise "
            "horizon_tokens or tokens"
        )


def _check_mixes(recipe: Recipe) -> None:
    for name, mix in recipe.mixes.items():
        for source in mix:
            if source not in recipe.sources:
                raise RecipeError(f"mixes.{name}.{source}: no such source; {nearest(source, recipe.sources)}")


def _above(low: float | None, high: float | None) -> bool:
    return low is not None and high is not None and low > high


def _check_init(recipe: Recipe, name: str, stage: StageSpec, origin: str, earlier: list[str]) -> None:
    key = f"stages.{name}.init"
    if origin not in earlier:
        located = origin in recipe.runtime.locations and origin not in recipe.sources
        if origin in recipe.stages or not (located or "/" in origin):
            near = f"{nearest(origin, earlier)}, or" if earlier else "it is the first; leave it out, or"
            raise RecipeError(
                f"{key}.from: {origin!r} is not an earlier stage; {near} set runtime.locations.{origin} to a checkpoint"
            )
        return
    parent = recipe.stages[origin]
    if stage.init.load != "weights":
        for name_of, ours, theirs in (
            (part, getattr(stage.optimizer, part), getattr(parent.optimizer, part))
            for part in ("matrices", "codebooks")
        ):
            if ours != theirs:
                raise RecipeError(
                    f"stages.{name}.optimizer.{name_of}: {ours}, and the moments of {origin}, which {key}.load: "
                    f"{stage.init.load} takes over, are {theirs}'s; make them equal, or load: weights"
                )
    if stage.init.load == "full" and parent.global_batch_tokens != stage.global_batch_tokens:
        raise RecipeError(
            f"{key}.load: full goes on at {origin}'s step, so stages.{name}.global_batch_tokens must be its "
            f"{parent.global_batch_tokens}; it is {stage.global_batch_tokens}"
        )
    if stage.init.load == "full" and stage.tokens <= parent.tokens:
        raise RecipeError(
            f"{key}.load: full counts {origin}'s {parent.tokens} tokens too, and stages.{name}.tokens is {stage.tokens}; raise it"
        )


def _check_evaluation(recipe: Recipe, key: str, stage: StageSpec) -> None:
    every, data = stage.evaluation.every_steps, stage.evaluation.data
    if every and stage_steps(stage) // every > MAX_EVALUATIONS:
        raise RecipeError(
            f"{key}.evaluation.every_steps: {every} asks for {stage_steps(stage) // every} evaluations; use at least "
            f"{stage_steps(stage) // MAX_EVALUATIONS + 1}"
        )
    if data and data not in recipe.sources:
        raise RecipeError(f"{key}.evaluation.data: no source {data!r}; {nearest(data, recipe.sources)}")
    if data and recipe.sources[data].builtin is not None:
        raise RecipeError(f"{key}.evaluation.data: {data!r} is builtin text; name a source of questions")


def _check_tokenizer(recipe: Recipe) -> None:
    tokenizer = recipe.tokenizer
    given = [name for name in ("name", "file", "train") if getattr(tokenizer, name) is not None]
    if len(given) != 1:
        raise RecipeError(
            "tokenizer: give exactly one of tokenizer.name (such as dolma2), tokenizer.file and tokenizer.train; there is "
            f"{' and '.join(given) or 'none'}; null takes one away"
        )
    if tokenizer.train is None:
        if tokenizer.sha256 is None:
            raise RecipeError(
                f"tokenizer.sha256: missing for {tokenizer.name or tokenizer.file!r}; give the hash of its file, which is its identity"
            )
        return
    if tokenizer.eos_token:
        raise RecipeError(
            f"tokenizer.eos_token: {tokenizer.eos_token!r} is for a published tokenizer; one that is trained here closes "
            "documents with <|endoftext|>; leave it out"
        )
    for source in tokenizer.train.sources:
        if source not in recipe.sources:
            raise RecipeError(
                f"tokenizer.train.sources: no source {source!r}; {nearest(source, recipe.sources)}"
            )
    if tokenizer.train.vocab_size != recipe.model.vocab_size:
        raise RecipeError(
            f"tokenizer.train.vocab_size: {tokenizer.train.vocab_size} is not model.vocab_size {recipe.model.vocab_size}; make them equal"
        )


def _check_runtime(recipe: Recipe) -> None:
    runtime = recipe.runtime
    if runtime.min_workers > runtime.max_workers:
        raise RecipeError(
            f"runtime.num_workers: [{runtime.min_workers}, {runtime.max_workers}] is not [min, max]; the first must not be larger"
        )
    if runtime.shard_size and any(n % runtime.shard_size for n in (runtime.min_workers, runtime.max_workers)):
        raise RecipeError(
            f"runtime.shard_size: {runtime.shard_size} does not divide runtime.num_workers {runtime.num_workers}; "
            "choose one that does, or 0 to shard over all workers"
        )
    if runtime.retry_backoff_seconds > runtime.retry_backoff_limit_seconds:
        raise RecipeError(
            f"runtime.retry_backoff_seconds: {runtime.retry_backoff_seconds:g} is above retry_backoff_limit_seconds "
            f"{runtime.retry_backoff_limit_seconds:g}; lower it"
        )
    if runtime.gpus_per_worker > 1 and not float(runtime.gpus_per_worker).is_integer():
        raise RecipeError(
            f"runtime.gpus_per_worker: {runtime.gpus_per_worker:g} is above 1 and not whole; use 1"
        )
    project = runtime.wandb_project
    if project and (_NOT_IN_PROJECTS.search(project) or len(project) > 128):
        raise RecipeError(
            f"runtime.wandb_project: {project[:140]!r} is no project's name; W&B takes at most 128 characters, without blanks "
            "and / \\ # ? % :"
        )
    if runtime.notify.url_env and not _VARIABLE.fullmatch(runtime.notify.url_env):
        raise RecipeError(
            f"runtime.notify.url_env: {runtime.notify.url_env!r} is no name of an environment variable; "
            "write one such as NCP_NOTIFY_URL, which holds the URL"
        )
    if runtime.notify.url and not runtime.notify.url.startswith(("http://", "https://")):
        raise RecipeError(
            f"runtime.notify.url: {runtime.notify.url!r} is neither http nor https; give a webhook's URL"
        )


def _check_name(key: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise RecipeError(f"{key}: {name!r} is not a name; use lower-case letters, digits, '-', '_' and '.'")


def _one_of(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise RecipeError(f"{key}: {value!r} is not one of {', '.join(allowed)}; {nearest(value, allowed)}")
