from __future__ import annotations

import pytest

from jobs.analysis.ladder import plan_ladder, scaled_spec
from ncp_model import ModelSpec
from ncp_model.flops import flops_per_token, total_parameters

BASE = ModelSpec.preset("olmo3-7b-ncp")
BUDGETS = (1e19, 3e19, 5e19, 8e19, 1e20)


def test_a_scaled_shape_keeps_head_and_codeword_sizes() -> None:
    spec = scaled_spec(BASE, 1024, (6, 3, 6))
    assert (spec.head_dim, spec.segment_size) == (BASE.head_dim, BASE.segment_size)
    assert spec.intermediate_size / spec.hidden_size == pytest.approx(
        BASE.intermediate_size / BASE.hidden_size, rel=0.03
    )
    assert total_parameters(spec) < total_parameters(BASE)
    vanilla = scaled_spec(ModelSpec.preset("olmo3-7b-vanilla-40"), 1024, (8, 0, 8))
    assert vanilla.token_layers == 16 and not vanilla.concept.enabled


def test_every_rung_costs_its_budget_within_one_step() -> None:
    specs = [scaled_spec(BASE, width, (n, n // 2, n)) for width, n in ((896, 4), (1280, 6), (2176, 8))]
    rungs = plan_ladder(
        "ncp", [(spec, None) for spec in specs], BUDGETS, sequence_length=8192, global_batch_tokens=1 << 20
    )
    assert {rung.budget for rung in rungs} == set(BUDGETS)
    for rung in rungs:
        step = flops_per_token(rung.spec, 8192).total * (1 << 20)
        assert abs(rung.flops - rung.budget) <= step / 2 + 1
        assert rung.tokens % (1 << 20) == 0
        assert 5 <= rung.tokens / rung.parameters <= 100
    assert rungs == sorted(rungs, key=lambda rung: (rung.budget, rung.parameters))
    assert len({rung.name for rung in rungs}) == len(rungs)
