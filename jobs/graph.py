"""Recipe -> DAG. The whole curriculum as steps, each named by exactly what decides its result.

    tokenizer -> [clean-{source}] -> shards-{source} ... -> {stage} -> {stage}-eval -> next stage ... -> report

The graph is pure: it is built from the recipe and the pins, and touches no storage. Whatever is in `runtime` stays out
of every identity. A stage's identity leaves out where it stops: the stop is the milestone the run asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from curriculum.errors import RecipeError, nearest
from curriculum.identity import UNKNOWN, fingerprint, identity_of
from curriculum.schema import CleaningSpec, EvaluationSpec, Recipe, SourceSpec, StageSpec
from curriculum.tokens import evaluated_steps, horizon_steps, stage_steps
from pipeline.dag.step import Step
from pipeline.data.order import ORDER_VERSION

TOKENIZER = "tokenizer"
UNTRAINED = "untrained-eval"
REPORT = "report"
VERSIONS = {"tokenizer": 1, "cleaning": 1, "shards": 1, "stage": 1, "evaluation": 1, "report": 1}
"""Kind -> version, bumped by hand when an executor's result changes for the same identity."""
MINHASH_VERSION = 2


def build_graph(recipe: Recipe, pins: Mapping[str, str]) -> tuple[Step, ...]:
    """All steps of `recipe`, in an order in which they can run.

    `pins` maps a source, or a checkpoint from outside that a stage starts from, to the digest of its content; what is
    missing there is not pinned yet, and every step that hangs on it has no fingerprint.
    """
    tokenizer = _tokenizer_step(recipe, pins)
    steps = [tokenizer]
    shards: dict[str, Step] = {}
    for name in used_sources(recipe):
        cleaning = _cleaning_step(recipe, name, pins)
        shards[name] = _shards_step(recipe, name, pins, tokenizer, cleaning)
        steps += [shards[name]] if cleaning is None else [cleaning, shards[name]]
    stages: dict[str, Step] = {}
    evaluations: list[Step] = []
    awaited: list[str] = []
    """Evaluations that the next stage waits for."""
    for name, stage in recipe.stages.items():
        stages[name] = _stage_step(recipe, name, stages, shards, tuple(awaited), pins)
        steps.append(stages[name])
        if not wants_evaluation(stage):
            continue
        first = len(evaluations)
        if not evaluations and stage.init.load != "full":
            untrained = replace(stage.evaluation, suites=())
            evaluations.append(
                _evaluation_step(recipe, UNTRAINED, stages[name], 0, stage, untrained, shards, pins)
            )
        for milestone in (*evaluated_steps(stage), stage_steps(stage)):
            evaluations.append(
                _evaluation_step(
                    recipe,
                    evaluation_name(name, stage, milestone),
                    stages[name],
                    milestone,
                    stage,
                    stage.evaluation,
                    shards,
                    pins,
                )
            )
        steps += evaluations[first:]
        if stage.evaluation.when == "before_next_stage":
            awaited += [step.name for step in evaluations[first:]]
    steps.append(_report_step(recipe, stages, evaluations))
    _check_generations(recipe, [step.name for step in steps])
    return tuple(steps)


def build_evaluation(
    recipe: Recipe, pins: Mapping[str, str], stage_name: str, milestone: int, evaluation: EvaluationSpec
) -> tuple[Step, ...]:
    """One evaluation of one milestone, last, after the steps it is computed from (which are done already).

    It is the very step that a run of the recipe would name, so what was evaluated once is never evaluated again.
    """
    steps = {step.name: step for step in build_graph(recipe, pins)}
    shards = {source: steps[f"shards-{source}"] for source in used_sources(recipe)}
    trained = replace(steps[stage_name], milestone=milestone, after=(), needs=())
    stage = recipe.stages[stage_name]
    name = evaluation_name(stage_name, stage, milestone)
    step = _evaluation_step(recipe, name, trained, milestone, stage, evaluation, shards, pins)
    data = [other for other in steps.values() if other.kind in ("tokenizer", "cleaning", "shards")]
    return (*data, trained, step)


def used_sources(recipe: Recipe) -> tuple[str, ...]:
    """Sources that some stage mixes, sorted."""
    return tuple(sorted({source for stage in recipe.stages.values() for source in stage.mixture}))


def wants_evaluation(stage: StageSpec) -> bool:
    """Whether there is anything to measure after the stage."""
    return bool(stage.evaluation.suites) or stage.evaluation.heldout_tokens > 0


def evaluates_beside(recipe: Recipe) -> bool:
    """Whether some stage is evaluated while the next one trains."""
    return any(
        wants_evaluation(stage) and stage.evaluation.when == "beside"
        for stage in list(recipe.stages.values())[:-1]
    )


def evaluation_name(stage_name: str, stage: StageSpec, milestone: int) -> str:
    """Name of the step that evaluates a milestone: `stage1-eval` at the stop, `stage1-eval-000400` before it."""
    return f"{stage_name}-eval" if milestone == stage_steps(stage) else f"{stage_name}-eval-{milestone:06d}"


def evaluation_actors(recipe: Recipe, evaluation: EvaluationSpec) -> int:
    """Actors of an evaluation: beside training it has the room of one worker."""
    return 1 if evaluation.when == "beside" else recipe.runtime.evaluation_actors


def evaluation_sources(recipe: Recipe) -> tuple[str, ...]:
    """Sources of questions that evaluations ask instead of the published package's."""
    return tuple(sorted({stage.evaluation.data for stage in recipe.stages.values()} - {""}))


def tokenizer_sources(recipe: Recipe) -> tuple[str, ...]:
    """Sources the tokenizer is trained on: those it names, else the first stage's."""
    assert recipe.tokenizer.train is not None
    first = next(iter(recipe.stages.values()))
    return recipe.tokenizer.train.sources or tuple(sorted(first.mixture))


def run_identity(recipe: Recipe, pins: Mapping[str, str]) -> str:
    """Fingerprint of everything a run is asked to do: its steps and their stops."""
    return fingerprint([[step.name, step.fingerprint, step.milestone] for step in build_graph(recipe, pins)])


def run_name(recipe: Recipe, pins: Mapping[str, str]) -> str:
    """`{recipe}-{6 hex of its identity}`, or UNKNOWN while a source is not pinned."""
    identity = run_identity(recipe, pins)
    return UNKNOWN if identity == UNKNOWN else f"{recipe.recipe}-{identity[:6]}"


def _tokenizer_step(recipe: Recipe, pins: Mapping[str, str]) -> Step:
    spec = recipe.tokenizer
    if spec.train is None:
        identity: dict[str, Any] = {"sha256": spec.sha256}
        if spec.eos_token:
            identity["eos_token"] = spec.eos_token
    else:
        identity = {
            "vocab_size": spec.train.vocab_size,
            "max_bytes_per_source": spec.train.max_bytes_per_source,
            "sources": {name: pins.get(name, UNKNOWN) for name in tokenizer_sources(recipe)},
            **_text_keys(recipe, tokenizer_sources(recipe)),
        }
    return _step(recipe, name=TOKENIZER, kind="tokenizer", identity=identity, resources=_staging(recipe, 1))


def _cleaning_step(recipe: Recipe, source: str, pins: Mapping[str, str]) -> Step | None:
    """The source's cleaning, if it asks for any."""
    clean = recipe.sources[source].clean
    if clean is None:
        return None
    return _step(
        recipe,
        name=f"clean-{source}",
        kind="cleaning",
        resources=_staging(recipe, recipe.runtime.staging_tasks),
        identity={
            "source": source,
            "content": pins.get(source, UNKNOWN),
            "clean": _cleaning_identity(clean),
            "group_bytes": recipe.data.group_bytes,
            "max_line_bytes": recipe.data.max_line_bytes,
            **_keys(recipe.sources[source]),
        },
    )


def _cleaning_identity(clean: CleaningSpec) -> dict[str, Any]:
    """The bound only refuses. MinHash counts numbers since its second version."""
    identity = identity_of(clean)
    del identity["max_removed"]
    return {**identity, "minhash": MINHASH_VERSION} if clean.dedup == "minhash" else identity


def _shards_step(
    recipe: Recipe, source: str, pins: Mapping[str, str], tokenizer: Step, cleaning: Step | None
) -> Step:
    content = pins.get(source, UNKNOWN) if cleaning is None else {"cleaned": cleaning.fingerprint}
    dtype = recipe.sources[source].token_dtype
    return _step(
        recipe,
        name=f"shards-{source}",
        kind="shards",
        resources=_staging(recipe, recipe.runtime.staging_tasks),
        identity={
            "source": source,
            "content": content,
            "special_tokens": recipe.sources[source].special_tokens,
            "tokenizer": tokenizer.fingerprint,
            "data": identity_of(recipe.data),
            **({"token_dtype": dtype} if dtype else {}),
            **_keys(recipe.sources[source]),
        },
        needs=(tokenizer.name,) if cleaning is None else (tokenizer.name, cleaning.name),
    )


def _keys(source: SourceSpec) -> dict[str, str]:
    """The fields that a source's text and ids are read from, where they are not the usual ones."""
    identity = identity_of(source)
    return {key: identity[key] for key in ("text_key", "id_key") if key in identity}


def _text_keys(recipe: Recipe, sources: tuple[str, ...]) -> dict[str, Any]:
    """The same for a tokenizer's training text, which has no ids."""
    keys = {name: recipe.sources[name].text_key for name in sources}
    named = {name: key for name, key in keys.items() if key != "text"}
    return {"text_keys": named} if named else {}


def _stage_step(
    recipe: Recipe,
    name: str,
    stages: Mapping[str, Step],
    shards: Mapping[str, Step],
    after: tuple[str, ...],
    pins: Mapping[str, str],
) -> Step:
    stage = recipe.stages[name]
    parent = stage.init.from_
    if parent is None:
        init: dict[str, Any] = {"seed": stage.seed}
    elif parent not in stages:
        init = {"content": pins.get(parent, UNKNOWN), "load": stage.init.load}
    else:
        init = {
            "from": stages[parent].fingerprint,
            "step": stages[parent].milestone,
            "load": stage.init.load,
        }
    return _step(
        recipe,
        name=name,
        kind="stage",
        resources=_workers(recipe, recipe.runtime.min_workers),
        identity={
            "model": identity_of(recipe.model),
            "precision": identity_of(recipe.precision),
            "init": init,
            "data": {source: shards[source].fingerprint for source in sorted(stage.mixture)},
            "mixture": {source: stage.mixture[source] for source in sorted(stage.mixture)},
            "order": {"version": ORDER_VERSION, "block": stage.order_block, "seed": stage.seed},
            "packing": stage.packing,
            "repetition_filter": stage.repetition_filter,
            "supply": {"max_repetition": stage.max_repetition, "on_shortage": stage.on_shortage},
            "sequence_length": stage.sequence_length,
            "global_batch_tokens": stage.global_batch_tokens,
            "optimizer": identity_of(stage.optimizer),
            "stability": identity_of(stage.stability),
            "schedule": {**identity_of(stage.schedule), "horizon_steps": horizon_steps(stage)},
        },
        needs=(
            *(shards[source].name for source in sorted(stage.mixture)),
            *((parent,) if parent is not None and parent in stages else ()),
        ),
        after=after,
        milestone=stage_steps(stage),
    )


def _evaluation_step(
    recipe: Recipe,
    name: str,
    stage_step: Step,
    milestone: int,
    stage: StageSpec,
    evaluation: EvaluationSpec,
    shards: Mapping[str, Step],
    pins: Mapping[str, str],
) -> Step:
    own = evaluation.data
    data = {"data": {"source": own, "content": pins.get(own, UNKNOWN)}} if own else {}
    return _step(
        recipe,
        name=name,
        kind="evaluation",
        resources=_workers(recipe, evaluation_actors(recipe, evaluation)),
        identity={
            "trajectory": stage_step.fingerprint,
            "step": milestone,
            "suites": list(evaluation.suites),
            "sequence_length": stage.sequence_length,
            "limit": evaluation.limit,
            "heldout_tokens": evaluation.heldout_tokens,
            "heldout": {source: step.fingerprint for source, step in sorted(shards.items())},
            **data,
        },
        needs=(stage_step.name, *(step.name for step in shards.values())),
    )


def _report_step(recipe: Recipe, stages: Mapping[str, Step], evaluations: list[Step]) -> Step:
    return _step(
        recipe,
        name=REPORT,
        kind="report",
        identity={
            "recipe": recipe.recipe,
            "stages": {name: [step.fingerprint, step.milestone] for name, step in stages.items()},
            "evaluations": {step.name: step.fingerprint for step in evaluations},
        },
        needs=tuple(stages),
        after=tuple(step.name for step in evaluations),
    )


def _check_generations(recipe: Recipe, names: list[str]) -> None:
    for name, generation in recipe.generations.items():
        if name not in names:
            raise RecipeError(f"generations.{name}: no such step; {nearest(name, names)}")
        if generation < 0:
            raise RecipeError(f"generations.{name}: {generation} is negative; use 0 for the first")


def _step(
    recipe: Recipe,
    *,
    name: str,
    kind: str,
    identity: dict[str, Any],
    needs: tuple[str, ...] = (),
    after: tuple[str, ...] = (),
    milestone: int | None = None,
    resources: Mapping[str, float] | None = None,
) -> Step:
    """A step of `recipe`, as the generation that the recipe asks for; the first is left out of the identity."""
    generation = recipe.generations.get(name, 0)
    return Step(
        name=name,
        kind=kind,
        version=VERSIONS[kind],
        identity={**identity, "generation": generation} if generation else identity,
        needs=needs,
        after=after,
        milestone=milestone,
        resources=resources or {},
    )


def _staging(recipe: Recipe, tasks: int) -> dict[str, float]:
    return {"CPU": tasks * recipe.runtime.staging_cpus_per_task}


def _workers(recipe: Recipe, count: int) -> dict[str, float]:
    runtime = recipe.runtime
    claims = {"CPU": count * runtime.cpus_per_worker, "GPU": count * runtime.gpus_per_worker}
    return {resource: amount for resource, amount in claims.items() if amount}
