"""What can be known of a recipe before work starts, beyond what its schema can tell: suites, the gate's number, filters.

Needs neither torch nor Ray. A test holds the lists below against what evaluations really produce.
"""

from __future__ import annotations

from collections.abc import Iterator

from curriculum.errors import RecipeError, nearest
from curriculum.schema import Recipe, StageSpec
from jobs.evaluation.suites import SuiteError, find_suite, suite_tasks
from jobs.graph import used_sources

LENGTHS = ("nats_per_token", "bits_per_byte")
MIXTURE_CONCEPT = ("ncp_loss", "ncp_r2", "vq_loss")
SOURCE_COUNTS = ("documents", "tokens", "bytes")
SOURCE_CONCEPT = (
    *MIXTURE_CONCEPT,
    "ncp_r2_copy",
    "codebook_perplexity",
    "codebook_used",
    "codebook_dead",
    "codebook_entries",
)
_ACCURACIES = ("accuracy", "accuracy_per_token", "accuracy_per_char", "accuracy_per_byte", "accuracy_pmi")
TASK = (
    "questions",
    "skipped",
    "n_truncated",
    "invalid",
    *_ACCURACIES,
    *(f"{name}_stderr" for name in _ACCURACIES),
    "chance",
    "bits_per_byte",
    "bits_per_byte_stderr",
    "nats_per_token",
    "greedy_match",
)
GOLD_ONLY = (
    "questions",
    "skipped",
    "n_truncated",
    "invalid",
    "bits_per_byte",
    "bits_per_byte_stderr",
    "nats_per_token",
    "greedy_match",
)


def check_before_work(recipe: Recipe) -> None:
    """Raise RecipeError or SuiteError, naming the key, for what would be found hours after the start."""
    for name, stage in recipe.stages.items():
        for index, suite in enumerate(stage.evaluation.suites):
            try:
                find_suite(suite)
            except SuiteError as error:
                raise SuiteError(
                    f"stages.{name}.evaluation.suites[{index}]: {str(error).partition(': ')[2]}"
                ) from error
        if len(set(stage.evaluation.suites)) != len(stage.evaluation.suites):
            raise RecipeError(f"stages.{name}.evaluation.suites: names one twice; leave one out")
        if stage.evaluation.heldout_tokens and not recipe.data.heldout_fraction:
            raise RecipeError(
                f"stages.{name}.evaluation.heldout_tokens: {stage.evaluation.heldout_tokens}, and data.heldout_fraction 0 keeps no "
                "text out of training; raise that, or set evaluation.heldout_tokens to 0"
            )
        _check_gate(recipe, name, stage)
    check_cleaning(recipe)


def _check_gate(recipe: Recipe, name: str, stage: StageSpec) -> None:
    if stage.gate is None:
        return
    known = sorted(gate_metrics(recipe, stage))
    if stage.gate.metric in known:
        return
    if not known:
        raise RecipeError(
            f"stages.{name}.gate.metric: {stage.gate.metric!r}, and the stage has no evaluation; give evaluation.suites or "
            "evaluation.heldout_tokens, or leave the gate out"
        )
    if stage.gate.metric.startswith(("mixture.", "heldout.")) and not stage.evaluation.heldout_tokens:
        raise RecipeError(
            f"stages.{name}.gate.metric: {stage.gate.metric!r} needs held-out text, and evaluation.heldout_tokens is 0; "
            "raise that"
        )
    near = (
        nearest(stage.gate.metric, known) if len(known) <= 8 else _nearest_of_many(stage.gate.metric, known)
    )
    raise RecipeError(
        f"stages.{name}.gate.metric: {stage.gate.metric!r} is no number that the stage's evaluation produces; {near}"
    )


def _nearest_of_many(metric: str, known: list[str]) -> str:
    near = nearest(metric, known)
    return near if near.startswith("did you mean") else f"name one such as {', '.join(known[-3:])}"


def gate_metrics(recipe: Recipe, stage: StageSpec) -> Iterator[str]:
    """Dotted paths of the numbers that the evaluation of a stage will hold, as `jobs.runs.gates` reads them."""
    concept = recipe.model.concept.enabled
    if stage.evaluation.heldout_tokens > 0:
        kinds = ("model", "unigram", "zero_concept") if concept else ("model", "unigram")
        places = ["mixture", *(f"heldout.{source}" for source in used_sources(recipe) if "." not in source)]
        for place in places:
            yield from (f"{place}.{kind}.{length}" for kind in kinds for length in LENGTHS)
            if concept:
                numbers = MIXTURE_CONCEPT if place == "mixture" else SOURCE_CONCEPT
                yield from (f"{place}.concept.{number}" for number in numbers)
            if place != "mixture":
                yield from (f"{place}.{count}" for count in SOURCE_COUNTS)
    for suite in stage.evaluation.suites:
        if "." not in suite:
            yield from (f"suites.{suite}.{number}" for number in ("score", "bits_per_byte"))
        for task in suite_tasks(suite):
            if "." in task.label:
                continue
            numbers = GOLD_ONLY if task.gold_only else TASK
            if task.generative:
                numbers = (
                    "questions",
                    "samples",
                    "skipped",
                    "n_truncated",
                    "n_unanswered",
                    "max_new_tokens",
                    task.metric,
                    f"{task.metric}_stderr",
                )
            yield from (f"tasks.{task.label}.{number}" for number in (*numbers, "shots"))


def check_cleaning(recipe: Recipe) -> None:
    """Raise SourceError for a setting that the source's filter does not take."""
    if not any(source.clean is not None and source.clean.settings for source in recipe.sources.values()):
        return
    from pipeline.data.filters import check_settings  # brings datatrove

    for name, source in recipe.sources.items():
        if source.clean is not None:
            check_settings(f"sources.{name}.clean", source.clean)
