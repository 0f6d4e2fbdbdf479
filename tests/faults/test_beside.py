"""Evaluation beside training on two cores: both go on at the same time, neither starves the other, killed and resumed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.ncp_process import SMALL, NcpProcess, milestones, ncp, step_store

pytestmark = pytest.mark.matrix

STAGE2 = """
  stage2:
    init: {from: stage1}
    mixture: {stdlib-prose: 1}
    tokens: 40960
    sequence_length: 64
    global_batch_tokens: 512
    order_block: 16
    optimizer: {lr: 1.0e-3}
    evaluation: {suites: [], heldout_tokens: 0}
runtime:
  parallel_steps: 2
"""


def test_evaluation_and_the_next_stage_share_the_machine(tmp_path: Path) -> None:
    recipe = tmp_path / "two.yaml"
    text = Path(SMALL).read_text()
    text = text.replace(
        "evaluation: {suites: [], heldout_tokens: 0}",
        "evaluation: {suites: [], heldout_tokens: 20000, when: beside}",
    ).replace("runtime:\n", STAGE2.lstrip("\n"))
    recipe.write_text(text)
    store = tmp_path / "store"
    process = NcpProcess(store, "run", str(recipe))
    process.wait_until(lambda: bool(milestones(store, "stage2")))
    process.kill(signal.SIGKILL)
    code, output = ncp(store, "run", str(recipe))
    assert code == 0, output
    evaluated = step_store(store, "stage1-eval")
    assert evaluated is not None and evaluated.receipt() is not None
    assert milestones(store, "stage2")[-1] == 80
