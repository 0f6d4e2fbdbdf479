"""Numbers have their bounds beside them: none without, none beyond, and fields that contradict one another are refused."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from curriculum.errors import RecipeError
from curriculum.identity import canonical_json, identity_of
from curriculum.layers import names_hint, structure, type_hints
from curriculum.load import load_recipe, plain
from curriculum.schema import Recipe

FREE = {"decoder_static_init", "diag_init", "final_diag_init", "fusion_alpha_init", "max", "min"}
"""Numbers that may be any finite one: what weights start at, and a gate's bounds."""


def _specs(cls: Any, seen: set[Any]) -> Iterator[Any]:
    if cls in seen:
        return
    seen.add(cls)
    yield cls
    for hint in type_hints(cls).values():
        inner = structure(hint) or structure(names_hint(hint))
        if inner is None and names_hint(hint) is not None:
            inner = (
                structure(typing.get_args(names_hint(hint))[0]) if typing.get_args(names_hint(hint)) else None
            )
        if inner is not None:
            yield from _specs(inner, seen)


def _holds_numbers(hint: Any) -> bool:
    parts = typing.get_args(hint)
    return hint in (int, float) or any(_holds_numbers(part) for part in parts if part is not type(None))


def test_every_number_of_a_recipe_declares_its_bounds() -> None:
    bounds = {"at_least", "above", "at_most", "below"}
    specs = list(_specs(Recipe, set()))
    assert len(specs) >= 20
    without = [
        f"{spec.__name__}.{field.name}"
        for spec in specs
        for field in dataclasses.fields(spec)
        if _holds_numbers(type_hints(spec)[field.name])
        and field.name not in FREE
        and not bounds & field.metadata.keys()
    ]
    assert without == []


def _numbers(value: Any, key: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _numbers(item, f"{key}.{name}" if key else name)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield key


@pytest.mark.parametrize("key", list(_numbers(plain(load_recipe("demo")), "")))
@pytest.mark.parametrize("value", [".nan", "inf", "-.inf", "-1e300", "1e400"])
def test_no_number_of_a_recipe_takes_what_is_not_finite_or_beyond_reason(key: str, value: str) -> None:
    if value == "-1e300" and key.rpartition(".")[2] in FREE:
        return
    with pytest.raises(RecipeError) as caught:
        load_recipe("demo", [f"{key}={value}"])
    assert key in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["stage1.schedule.final_ratio=-1"],
            r"stages\.stage1\.schedule\.final_ratio: -1\.0 must not be negative",
        ),
        (["stage1.schedule.final_ratio=1.5"], r"final_ratio: 1\.5 must be at most 1"),
        (["stage1.schedule.warmup_steps=-1"], r"warmup_steps: -1 must not be negative"),
        (["stage1.schedule.warmup_steps=301"], r"warmup_steps: 301 is beyond the 300 steps of the schedule"),
        (["stage2.schedule.warmup_steps=51"], r"warmup_steps: 51 is beyond the 50 steps"),
        (["stage1.schedule.half_from_step=100"], r"half_from_step: needs half_horizon_tokens"),
        (
            ["stage1.schedule.half_from_step=100", "stage1.schedule.half_horizon_tokens=4096"],
            r"half_from_step: 100 is not between",
        ),
        (["stage1.gate={max: .nan}"], r"stages\.stage1\.gate\.max: nan must be a finite number"),
        (["stage1.gate={min: 2, max: 1}"], r"stages\.stage1\.gate\.min: 2 is above gate\.max 1"),
        (
            ["stage1.optimizer.grad_clip=inf"],
            r"grad_clip: inf must be a finite number; use null for no clipping",
        ),
        (["stage1.optimizer.weight_decay=300"], r"weight_decay = 300\.0: times lr 0\.004 it is 1 or more"),
        (["stage1.optimizer.betas=[0.9, 1]"], r"optimizer\.betas\[1\]: 1\.0 must be below 1"),
        (["data.shard_tokens=-1"], r"data\.shard_tokens: -1 must be at least 1"),
        (["data.bad_line_tolerance=2"], r"data\.bad_line_tolerance: 2\.0 must be at most 1"),
        (["runtime.gpus_per_worker=-1"], r"runtime\.gpus_per_worker: -1\.0 must not be negative"),
        (["runtime.gpus_per_worker=1.5"], r"runtime\.gpus_per_worker: 1\.5 is above 1 and not whole"),
        (["runtime.object_store_mib=-1"], r"runtime\.object_store_mib: -1 must be at least 75"),
        (["runtime.num_workers=[1, 0]"], r"runtime\.num_workers\[1\]: 0 must be at least 1"),
        (
            ["runtime.retry_backoff_seconds=400"],
            r"retry_backoff_seconds: 400 is above retry_backoff_limit_seconds",
        ),
        (["stage1.evaluation.limit=-1"], r"evaluation\.limit: -1 must not be negative"),
        (["stage1.max_repetition=0"], r"max_repetition: 0\.0 must be positive"),
        (["stage1.order_block=1000000000"], r"order_block: 1000000000 must be at most"),
        (
            ["stage1.tokens=10000000000", "stage1.evaluation.every_steps=1"],
            r"every_steps: 1 asks for 2441407 evaluations",
        ),
        (["ladder={budgets: [1], families: {ncp: []}}"], r"ladder\.families\.ncp: empty"),
        (["ladder={budgets: [-1], families: {}}"], r"ladder\.budgets\[0\]: -1\.0 must be positive"),
        (["mixes.m={stdlib-code: .nan}"], r"mixes\.m\.stdlib-code: nan must be a finite number"),
        (["mixes.m={stdlib-cod: 1}"], r"mixes\.m\.stdlib-cod: no such source; did you mean 'stdlib-code'"),
        (["generations.stage1=-1"], r"generations\.stage1: -1 must not be negative"),
        (["model.norm_eps=.nan"], r"model\.norm_eps: nan must be a finite number"),
        (["stage1.seed=99999999999999999999"], r"stages\.stage1\.seed: \d+ must fit in 64 bits"),
        (
            ["stage2.optimizer.matrices=adamw"],
            r"stages\.stage2\.optimizer\.matrices: adamw, and the moments of stage1",
        ),
        (["stage2.optimizer.codebooks=muon"], r"stages\.stage2\.optimizer\.codebooks: muon"),
        (
            ["stage1.mixture.stdlib-code=0.0001"],
            r"stages\.stage1\.mixture\.stdlib-code: weight 0\.0001 is less than one window in a block of 128",
        ),
        (["runtime.wandb_project=a/b"], r"runtime\.wandb_project: 'a/b' is no project's name"),
    ],
)
def test_a_recipe_that_contradicts_itself_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe("demo", overrides)


def test_matrices_may_change_hands_where_no_moments_are_taken_over() -> None:
    recipe = load_recipe("demo", ["stage2.optimizer.matrices=adamw", "stage2.init.load=weights"])
    assert recipe.stages["stage2"].optimizer.matrices == "adamw"


def test_no_clipping_is_null_and_stays_strict_json() -> None:
    optimizer = load_recipe("demo", ["stage1.optimizer.grad_clip=null"]).stages["stage1"].optimizer
    assert optimizer.clip_norm == float("inf")
    assert json.loads(canonical_json(identity_of(optimizer)))["grad_clip"] is None


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("stage1.mixture={stdlib-prose: 1e308, stdlib-code: 1e308}", "stages.stage1.mixture.stdlib-prose"),
        ("model.concept.rope_stride=9223372036854775807", "model.concept.rope_stride"),
        ("model.concept.chunk_size=256", "stages.stage1.sequence_length"),
    ],
)
def test_finite_numbers_that_nothing_can_be_done_with_are_refused(override: str, key: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe("demo", [override])
    assert key in str(caught.value) and "\n" not in str(caught.value)
