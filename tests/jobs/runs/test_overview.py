"""The overview of a run: every number from storage, at a cost that does not grow with the run."""

from __future__ import annotations

import io
import itertools
import json
import time

import pytest
from rich.console import Console

from jobs.runs.alerts import Alert, write_alert
from jobs.runs.overview import RunOverview, run_overview
from jobs.show.status_view import curriculum_bar, print_run, print_run_list
from pipeline.dag.store import StepStore
from pipeline.storage import Storage
from tests.jobs.counting import CountingStorage
from tests.jobs.stored_run import lease, store_run

_NAMES = itertools.count()


@pytest.fixture
def storage() -> CountingStorage:
    return CountingStorage(f"memory://overview-{next(_NAMES)}")


def _running(storage: Storage) -> None:
    """Stage1 over and evaluated, stage2 at step 20 of 50 and held by this process."""
    steps = store_run(
        storage,
        "r",
        losses={"stage1": lambda tokens: 5.0, "stage2": lambda tokens: 4.0},
        taken={"stage2": 20},
        evaluations={"stage1": {"arc_easy_rc_0shot": 0.5, "sciq_rc_0shot": 0.3, "copa": 0.7}},
    )
    lease(storage, steps["stage2"].key, "r", alive=True)
    message = "loss 9.1 is 7 sigma above its window"
    alert = Alert(kind="loss_spike", severity="warning", message=message, step=12, attempt=1, run="r", at=1.0)
    write_alert(storage, steps["stage2"].key, alert)


def _text(overview: RunOverview) -> str:
    stream = io.StringIO()
    print_run(Console(file=stream, width=160, soft_wrap=True), overview)
    return stream.getvalue()


def test_a_running_stage_shows_where_it_is(storage: CountingStorage) -> None:
    _running(storage)
    overview = run_overview(storage, "r")
    first, second = overview.stages
    assert (first.state, first.tokens_done, first.tokens_budget) == ("done", 819_200, 819_200)
    assert (second.state, second.steps_done, second.steps) == ("running", 20, 50)
    assert second.first_token == 819_200 and second.tokens_done == 20 * 4096
    assert second.metrics["ntp"] == 4.0 and second.metrics_step == 20
    assert second.rate == 8192 and second.eta_seconds == 15 and overview.eta_seconds == 15
    assert (second.attempts, second.restarts, first.milestones) == (1, 0, (200,))
    assert overview.tokens_done == 819_200 + 20 * 4096 and overview.status.state == "running"


def test_evaluations_so_far_come_with_the_average_of_averages(storage: CountingStorage) -> None:
    _running(storage)
    (evaluation,) = run_overview(storage, "r").evaluations
    assert (evaluation.name, evaluation.stage, evaluation.step) == ("stage1", "stage1", 200)
    assert evaluation.suites["quick"]["score"] == pytest.approx(0.5)
    assert evaluation.bits_per_byte["stage1"] == pytest.approx(1.56, rel=1e-3)


def test_alerts_of_training_and_failures_are_shown(storage: CountingStorage) -> None:
    _running(storage)
    overview = run_overview(storage, "r")
    (alert,) = overview.alerts
    assert (alert.severity, alert.kind, alert.name, alert.step) == ("warning", "loss_spike", "stage2", 12)
    key = overview.status.steps[-1].key
    StepStore(storage, key).write_failure(1, {"error": "disk [red] full", "class": "infrastructure"})
    overview = run_overview(storage, "r")
    assert [alert.kind for alert in overview.alerts] == ["failed", "loss_spike"]
    assert "error: report: attempt 1 failed: disk [red] full" in _text(overview)


def test_silence_of_a_running_step_is_an_alert(
    storage: CountingStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    _running(storage)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 300)
    kinds = {alert.kind: alert.message for alert in run_overview(storage, "r").alerts}
    assert kinds["silent"].startswith("no sign of life for 5:0")


def test_a_stopped_stage_counts_what_is_kept(storage: CountingStorage) -> None:
    steps = store_run(storage, "r", losses={"stage1": lambda tokens: 5.0}, taken={"stage1": 70})
    StepStore(storage, steps["stage1"].key).publish_milestone(50, {"attempt": 1})
    stage = run_overview(storage, "r").stages[0]
    assert stage.state == "stopped" and stage.steps_done == 50 and stage.eta_seconds is None
    assert stage.metrics_step == 70


def test_the_cost_does_not_grow_with_the_run() -> None:
    """40 rows or 4,000 in a hundred segments: the same requests and about the same bytes."""
    counted = []
    for rows in (40, 4000):
        storage = CountingStorage(f"memory://overview-{next(_NAMES)}")
        tokens = f"stage1.tokens={4096 * rows}", f"stage1.horizon_tokens={4096 * rows}"
        store_run(
            storage, "r", *tokens, "stage1.max_repetition=100", losses={"stage1": lambda tokens: 5.0},
            segment_rows=40,
        )  # fmt: skip
        storage.reset()
        run_overview(storage, "r")
        counted.append(storage.counts())
    short, long = counted
    assert short | {"bytes": 0} == long | {"bytes": 0}
    assert long["bytes"] < 1.2 * short["bytes"] < 60_000


def test_the_record_is_complete_and_plain_json(storage: CountingStorage) -> None:
    _running(storage)
    record = json.loads(json.dumps(run_overview(storage, "r").record(), allow_nan=False))
    assert list(record) == [
        "run", "recipe", "state", "created", "problem", "steps", "tokens_done", "tokens_budget", "rate", "eta_seconds",
        "stages", "evaluations", "alerts",
    ]  # fmt: skip
    assert record["steps"][3]["needs"] == ["shards-stdlib-code", "shards-stdlib-prose"]


def test_the_terminal_shows_it_all(storage: CountingStorage) -> None:
    _running(storage)
    overview = run_overview(storage, "r")
    text = _text(overview)
    for expected in ("r  running  recipe demo", "901,120/1,024,000 88 %", "81,920/204,800", "40 %", "20/50", "8,192",
                     "0:15", "warning: stage2 at step 12: loss 9.1", "shards-stdlib-code, shards-stdlib-prose",
                     "quick, score", "1.56", "0.5"):  # fmt: skip
        assert expected in text, expected
    stream = io.StringIO()
    print_run_list(Console(file=stream, width=160), [overview])
    assert "901,120/1,024,000 88 %" in stream.getvalue() and "stage2" in stream.getvalue()


def test_the_bar_is_as_wide_as_the_budgets(storage: CountingStorage) -> None:
    _running(storage)
    assert curriculum_bar(run_overview(storage, "r").stages, 50) == f"[{'#' * 40}|####......]"


def test_a_stage_that_goes_on_with_the_full_state_counts_its_own_tokens(storage: CountingStorage) -> None:
    """`load: full` begins at the parent's last step: its budget is what lies beyond."""
    store_run(
        storage,
        "r",
        "stage2.init.load=full",
        "stage2.tokens=1024000",
        "stage2.optimizer.lr=0.004",
        losses={"stage1": lambda tokens: 5.0},
    )
    first, second = run_overview(storage, "r").stages
    assert (second.first_token, second.tokens_budget, second.tokens_done) == (819_200, 204_800, 0)
    assert first.tokens_budget + second.tokens_budget == 1_024_000
