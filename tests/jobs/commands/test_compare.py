"""`ncp compare` on made-up stored runs whose answers are known, and `ncp report` of several."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from curriculum.load import load_recipe
from jobs.analysis.comparison import ComparisonError
from jobs.cli import app
from jobs.evaluation.suites import suite_stderr
from jobs.show.report.side_by_side import differences
from ncp_model.flops import flops_per_token
from pipeline.storage import Storage
from tests.jobs.stored_run import Loss, store_run
from tests.ncp_process import ncp

_NAMES = itertools.count()
SIZES = "stage1.tokens=4096000", "stage1.horizon_tokens=4096000", "stage1.max_repetition=1000"
"""A thousand steps of stage 1."""
VANILLA = "model.concept.enabled=false", "model.crc.enabled=false", "model.concept_layers=0"


def falling(speed: float, offset: float = 0.0) -> Loss:
    """A power law in tokens: `speed` 2 reaches every loss in half the tokens."""
    return lambda tokens: offset + 1.7 + 12 * (speed * tokens) ** -0.12


@pytest.fixture
def storage() -> Storage:
    return Storage(f"memory://compare-{next(_NAMES)}")


def run(storage: Storage, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--storage", storage.url])


def record(storage: Storage, *arguments: str) -> dict:
    result = run(storage, "compare", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def pair(storage: Storage, speed: float = 1 / 0.513, seed: int = 0) -> tuple[str, str]:
    """A baseline and a candidate that is `speed` times as fast, of one data order."""
    names = (f"base-{seed}", f"ncp-{seed}")
    for name, own, loss in ((names[0], VANILLA, falling(1.0)), (names[1], (), falling(speed))):
        store_run(storage, name, *SIZES, f"stage1.seed={seed}", *own, losses={"stage1": loss})
    return names


@pytest.mark.parametrize(("speed", "tokens"), [(1 / 0.513, 0.513), (1 / 0.662, 0.662), (1.0, 1.0)])
def test_tokens_to_match_of_known_curves(storage: Storage, speed: float, tokens: float) -> None:
    """The seed's 51.3 % (1.95 times fewer) and 66.2 %."""
    stage = record(storage, *pair(storage, speed))["stages"]["stage1"]
    assert stage["token_ratio"] == pytest.approx(tokens, abs=0.002)
    assert stage["token_speedup"] == pytest.approx(speed, rel=0.004)
    (matched,) = stage["pairs"]
    assert matched["target_loss"] == pytest.approx(falling(1.0)(4_096_000), abs=1e-3)
    assert matched["tokens"] == pytest.approx(tokens * 4_096_000, rel=0.004)
    assert stage["interval_over"] == "steps" and stage["token_ratio_interval"][0] <= stage["token_ratio"]


def test_compute_to_match_counts_each_models_flops(storage: Storage) -> None:
    found = record(storage, *pair(storage))
    base, ncp_model = (
        flops_per_token(load_recipe("demo", list(own)).model, 256).total for own in (VANILLA, ())
    )
    stage = found["stages"]["stage1"]
    assert stage["pairs"][0]["flops_per_token"] == [base, ncp_model]
    assert stage["compute_ratio"] == pytest.approx(0.513 * ncp_model / base, rel=0.004)
    assert found["smoothing"]["words"].startswith("local straight line over 2 %")


def test_seeds_are_paired_and_give_intervals(storage: Storage) -> None:
    for seed, speed in ((1, 1.9), (2, 2.0), (3, 2.1)):
        pair(storage, speed, seed)
    found = record(storage, "base-1,base-2,base-3", "ncp-3,ncp-1,ncp-2")
    stage = found["stages"]["stage1"]
    low, high = stage["token_ratio_interval"]
    assert stage["token_ratio"] == pytest.approx(sum(1 / s for s in (1.9, 2.0, 2.1)) / 3, abs=0.002)
    assert low < 0.49 and high > 0.51
    assert [(one["baseline"], one["candidate"]) for one in stage["pairs"]] == [
        ("base-3", "ncp-3"), ("base-1", "ncp-1"), ("base-2", "ncp-2"),
    ]  # fmt: skip
    again = record(storage, "--a", "base-1", "--a", "base-2", "--b", "ncp-1", "--b", "ncp-2")
    assert len(again["stages"]["stage1"]["pairs"]) == 2


def test_another_data_order_is_refused_unless_forced(storage: Storage, tmp_path: Path) -> None:
    base, _ = pair(storage)
    store_run(storage, "other", *SIZES, "stage1.seed=0", "stages.stage1.mixture.stdlib-code=0.9",
              losses={"stage1": falling(2.0)})  # fmt: skip
    result = run(storage, "compare", base, "other")
    assert isinstance(result.exception, ComparisonError)
    assert re.search(r"base-0 and other read different data orders.*--force", str(result.exception))
    forced = record(storage, base, "other", "--force")["stages"]["stage1"]
    assert forced["token_ratio"] == pytest.approx(0.5, abs=0.002) and not forced["pairs"][0]["same_order"]
    assert any("different data orders (forced)" in note for note in forced["notes"])


def test_a_run_against_itself_shows_no_savings(storage: Storage, tmp_path: Path) -> None:
    for name in ("a", "b"):  # two runs that share their Stage-1 and so every step of it
        store_run(storage, name, losses={"stage1": falling(1.0), "stage2": falling(1.0, -0.5)})
    for other in ("a", "b"):
        for stage in record(storage, "a", other)["stages"].values():
            assert stage["shared"] and stage["token_ratio"] is stage["token_speedup"] is None
            assert "one trajectory" in stage["notes"][0]
        page = tmp_path / "page.html"
        shown = run(storage, "compare", "a", other, "--to", str(page)).output
        assert "x less" not in shown and "the same steps" in shown
        assert "x less" not in page.read_text()


def test_another_horizon_is_refused_unless_forced_and_another_rate_is_said(storage: Storage) -> None:
    store_run(storage, "a", losses={"stage1": falling(1.0)})
    store_run(storage, "b", "stage1.horizon_tokens=3276800", losses={"stage1": falling(1.4)})
    store_run(storage, "c", "stage1.optimizer.lr=0.001", losses={"stage1": falling(1.4)})
    result = run(storage, "compare", "a", "b")
    assert re.search(
        r"schedule of stage1 ends at 1,228,800 tokens in a and at 3,276,800 in b", str(result.exception)
    )
    assert any(
        "horizon_tokens differs" in note
        for note in record(storage, "a", "b", "--force")["stages"]["stage1"]["notes"]
    )
    assert any(
        "optimizer.lr differs: 0.004 in a, 0.001 in c" in note
        for note in record(storage, "a", "c")["stages"]["stage1"]["notes"]
    )


def test_a_fork_that_ends_behind_shows_no_savings(storage: Storage) -> None:
    store_run(storage, "a", losses={"stage1": falling(1.0)})
    store_run(storage, "b", "stage1.optimizer.lr=0.001",
              losses={"stage1": lambda tokens: falling(1.0)(tokens) + (0.1 if tokens > 100_000 else -2.0)})  # fmt: skip
    stage = record(storage, "a", "b")["stages"]["stage1"]
    assert stage["token_ratio"] is None and stage["unmatched"] == 1


def test_losses_that_are_missing_are_said_and_leave_strict_json(storage: Storage) -> None:
    nan = float("nan")
    store_run(storage, "a", losses={"stage1": falling(1.0)})
    store_run(storage, "b", "stage1.optimizer.lr=0.001",
              losses={"stage1": lambda tokens: nan if tokens > 800_000 else falling(2.0)(tokens)})  # fmt: skip
    stage = record(storage, "a", "b")["stages"]["stage1"]
    assert any("has no loss at" in note and "the last ones" in note for note in stage["notes"])


def test_stage_two_hangs_on_the_order_of_stage_one(storage: Storage) -> None:
    for name, weight in (("a", 0.4), ("b", 0.5)):
        store_run(storage, name, f"stages.stage1.mixture.stdlib-code={weight}",
                  losses={"stage1": falling(1.0), "stage2": falling(1.0, -0.5)})  # fmt: skip
    result = run(storage, "compare", "a", "b", "--stage", "stage2")
    assert "different data orders" in str(result.exception)


def test_every_common_stage_is_compared_over_its_own_tokens(storage: Storage) -> None:
    for name, speed in (("a", 1.0), ("b", 2.0)):
        store_run(storage, name, "stage1.optimizer.lr=0.004" if name == "a" else "stage1.optimizer.lr=0.003",
                  losses={"stage1": falling(speed), "stage2": falling(speed, -0.5)})  # fmt: skip
    stages = record(storage, "a", "b")["stages"]
    assert list(stages) == ["stage1", "stage2"]
    assert stages["stage2"]["pairs"][0]["baseline_tokens"] == 204_800
    assert stages["stage2"]["token_ratio"] == pytest.approx(0.5, abs=0.02)


def test_a_candidate_that_never_gets_there_and_an_unfinished_one_say_so(storage: Storage) -> None:
    store_run(storage, "a", *SIZES, losses={"stage1": falling(1.0)})
    store_run(storage, "b", *SIZES, *VANILLA, losses={"stage1": falling(0.8)}, taken={"stage1": 500})
    stage = record(storage, "a", "b")["stages"]["stage1"]
    assert stage["token_ratio"] is None and stage["unmatched"] == 1
    assert any("b has 50 % of its stage1" in note for note in stage["notes"])
    assert "not reached" in run(storage, "compare", "a", "b").output


def test_averages_are_averages_of_averages_with_an_interval(storage: Storage) -> None:
    answers = {
        "a": {"arc_easy_rc_0shot": 0.30, "sciq_rc_0shot": 0.30, "copa": 0.60},
        "b": {"arc_easy_rc_0shot": 0.36, "sciq_rc_0shot": 0.30, "copa": 0.75},
    }
    for name, own in (("a", VANILLA), ("b", ())):
        store_run(storage, name, *own, losses={"stage1": falling(1.0)}, evaluations={"stage1": answers[name]})
    found = record(storage, "a", "b")
    averages = {(one["what"], one["measure"]): one for one in found["averages"]}
    quick = averages["quick", "score"]
    assert quick["baseline"] == pytest.approx(0.4) and quick["candidate"] == pytest.approx(0.47)
    half = 1.96 * 2**0.5 * 0.05 / 3**0.5
    assert quick["interval"] == pytest.approx([0.07 - half, 0.07 + half])
    assert quick["interval_over"] == "questions"
    assert averages["held-out", "bits_per_byte"]["difference"] == pytest.approx(0.0)
    assert "stage1, quick" in run(storage, "compare", "a", "b").output


def test_answers_to_other_questions_are_left_out(storage: Storage) -> None:
    for name, limit in (("a", 50), ("b", 20)):
        store_run(storage, name, f"stage1.evaluation.limit={limit}", losses={"stage1": falling(1.0)},
                  evaluations={"stage1": {}})  # fmt: skip
    found = record(storage, "a", "b")
    assert found["averages"] == [] and "asked different questions" in found["notes"][-1]
    assert record(storage, "a", "b", "--force")["averages"]


def test_a_suites_error_is_that_of_a_mean_of_means() -> None:
    task = {"metric": "accuracy", "accuracy": 0.5}
    labels = ("arc_easy_rc_0shot", "sciq_rc_0shot", "copa")
    results = {
        label: {**task, "accuracy_stderr": error}
        for label, error in zip(labels, (0.03, 0.0, 0.04), strict=True)
    }
    assert suite_stderr("quick", results, "score") == pytest.approx(0.05 / 3)
    assert suite_stderr("quick", results, "bits_per_byte") is None
    del results["copa"]["accuracy_stderr"]
    assert suite_stderr("quick", results, "score") is None


def test_the_page_has_plots_and_the_table(storage: Storage, tmp_path: Path) -> None:
    page = tmp_path / "compare.html"
    result = run(storage, "compare", *pair(storage), "--by", "flops", "--to", str(page))
    assert result.exit_code == 0, result.output
    assert "51.3 % (1.95x less)" in result.output and "compute to match" in result.output
    text = page.read_text()
    for expected in (
        "51.3%",
        "1.95x",
        'class="level"',
        "of the baseline&#x27;s compute",
        "local straight line",
    ):
        assert expected in text, expected


def test_a_report_of_several_runs_compares_them_with_the_first(storage: Storage, tmp_path: Path) -> None:
    base, candidate = pair(storage)
    store_run(storage, "other", *SIZES, "stage1.seed=5", losses={"stage1": falling(2.0)})
    page = tmp_path / "page.html"
    result = run(storage, "report", base, candidate, "other", "--to", str(page))
    assert result.exit_code == 0, result.output
    text = page.read_text()
    for expected in ("3 runs", "51.3%", "Not compared: base-0 and other", "over training FLOPs",
                     "model.concept.enabled", "stages.stage1.seed"):  # fmt: skip
        assert expected in text, expected


def test_differences_are_dotted_paths_over_any_number_of_recipes() -> None:
    one, two = {"a": {"b": 1, "c": [1, 2]}}, {"a": {"b": 2, "c": [1, 3]}, "d": "x"}
    assert differences([one, two, one]) == [
        ("a.b", [1, 2, 1]), ("a.c[1]", [2, 3, 2]), ("d", [None, "x", None]),
    ]  # fmt: skip
    assert differences([one, one]) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["base-0"], "give two runs"),
        (["base-0", "ncp-0", "--metric", "nothing"], "'nothing' has no value in stage1"),
        (["base-0", "ncp-0", "--smoothing", "3"], "--smoothing 3.0 is not a share"),
        (["base-0", "ncp-0", "--stage", "stage9"], "has no stage 'stage9'"),
        (["base-0", "ncp-0", "--stage", "stage2"], "has taken no step yet"),
    ],
)
def test_what_cannot_be_compared_says_why(storage: Storage, arguments: list[str], message: str) -> None:
    pair(storage)
    result = run(storage, "compare", *arguments)
    assert result.exit_code != 0
    assert message in f"{result.output} {result.exception}"


def test_errors_are_one_line_and_exit_code_2(tmp_path: Path) -> None:
    code, output = ncp(tmp_path / "store", "compare", "a", "b")
    assert code == 2 and output.startswith("error: run: 'a' does not exist") and output.count("\n") == 1
