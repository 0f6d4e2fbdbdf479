"""The page as a reader's browser gets it: well formed, self-contained, escaped, bounded."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest

from jobs.show.report.chart import Boundary, Series, line_chart
from jobs.show.report.model import (
    Alert,
    ComparisonView,
    Curve,
    EvaluationRow,
    RunReport,
    SourceCell,
    StageView,
    StepRow,
    TaskCell,
)
from jobs.show.report.page import render_page

VOID = {"meta", "br", "line", "circle", "path"}


class Checker(HTMLParser):
    """Collects text and tags, and fails on a tag closed out of order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes out of order"

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def check(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    return checker


def run(name: str = "demo-1a2b3c", points: int = 300, **changes: object) -> RunReport:
    x = np.arange(1, points + 1) * 1000.0
    values: dict = {
        "name": name,
        "recipe": "demo",
        "status": "done",
        "created": "2025-01-01 00:00 UTC",
        "stages": (
            StageView(name="first", status="done", tokens_done=200_000, tokens_budget=200_000, steps_done=200, steps=200,
                      first_token=0, mixture={"prose": 0.6, "code": 0.4}),
            StageView(name="second", status="running", tokens_done=50_000, tokens_budget=100_000, steps_done=50,
                      steps=100, first_token=200_000, mixture={"code": 2.0}),
        ),
        "curves": (
            Curve(key="lr", title="Learning rate", x=x, y=x / x.max(), smooth=False),
            Curve(key="ntp", title="Next-token loss", x=x, y=3 + np.exp(-x / 1e5), unit="nats"),
        ),
        "evaluations": (
            EvaluationRow(label="unigram", reference=True, mixture_bits_per_byte=3.0,
                          heldout={"prose": SourceCell(bits_per_byte=3.1)}),
            EvaluationRow(label="first", mixture_bits_per_byte=1.5, ncp_loss=0.4, ncp_r2=0.5, codebook_perplexity=30.0,
                          codebook_used=60.0, codebook_entries=64,
                          heldout={"prose": SourceCell(bits_per_byte=1.25, low=1.2, high=1.3)},
                          tasks={"copa": TaskCell(questions=100, accuracy=0.7, stderr=0.05, chance=0.5, bits_per_byte=1.9)}),
            EvaluationRow(label="first, concept zeroed", reference=True, mixture_bits_per_byte=1.75),
        ),
        "steps": (StepRow(name="train first", fingerprint="0123456789abcdef", state="done", seconds=93.0, attempt=2),),
        "alerts": (Alert(severity="warning", message="a worker was lost"),),
        "facts": {"Parameters": "3.4M"},
        **changes,
    }  # fmt: skip
    return RunReport(**values)


def test_a_whole_report_is_well_formed_and_says_what_was_measured() -> None:
    page = check(render_page([run()]))
    text = " ".join(page.text)
    for expected in ("demo-1a2b3c", "1.250", "[1.200, 1.300]", "0.50x the unigram model", "+0.250", "70.0%", "60.0 / 64",
                     "a worker was lost", "0123456789ab", "1:33", "Learning rate", "first", "second", "3.4M"):  # fmt: skip
        assert expected in text, expected


def test_the_page_needs_nothing_from_outside_and_runs_nothing() -> None:
    page = render_page([run()])
    checker = check(page)
    assert not {tag for tag, _ in checker.tags} & {"script", "link", "img", "iframe", "object"}
    assert all(not attrs.get("src") and not attrs.get("href") for _, attrs in checker.tags)
    assert not re.search(r"https?:|url\(|@import", page)


def test_everything_is_escaped() -> None:
    evil = "<script>alert('x')</script>&\""
    page = render_page(
        [
            run(
                name=evil,
                recipe=evil,
                status=evil,
                created=evil,
                description=evil,
                facts={evil: evil},
                alerts=(Alert(severity=evil, message=evil, when=evil),),
                steps=(StepRow(name=evil, fingerprint=evil, state=evil, seconds=1.0, attempt=1, note=evil),),
                curves=(Curve(key=evil, title=evil, x=[1.0], y=[1.0], unit=evil),),
                stages=(
                    StageView(name=evil, status=evil, tokens_done=1, tokens_budget=2, steps_done=1, steps=2, first_token=0,
                              mixture={evil: 1.0}, note=evil),
                ),
                evaluations=(
                    EvaluationRow(label=evil, heldout={evil: SourceCell(bits_per_byte=1.0)},
                                  tasks={evil: TaskCell(questions=1, metric=evil)}),
                ),
            )
        ]
    )  # fmt: skip
    checker = check(page)
    assert "script" not in {tag for tag, _ in checker.tags}
    assert evil in "".join(checker.text)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "y",
    [
        [],
        [2.0],
        [math.nan],
        [math.nan, 1.0, math.inf, 2.0, math.nan],
        [0.0, 0.0],
        [5.0, 5.0, 5.0],
        [-1.0, 1e-30, 1e30],
    ],
)
def test_odd_curves_are_drawn_without_a_nan_in_sight(y: list[float], log: bool) -> None:
    curve = Curve(key="ntp", title="t", x=[float(i) for i in range(len(y))], y=y, log=log)
    page = render_page([run(curves=(curve,))])
    check(page)
    coordinates = re.findall(r'(?:x1|y1|cx|cy|d|x|y)="([^"]*)"', page)
    assert not any("nan" in value or "inf" in value for value in coordinates)


def test_a_long_run_gives_a_small_page_with_its_extremes() -> None:
    x = np.arange(1, 100_001, dtype=np.float64) * 4_194_304
    y = 2.5 + np.random.default_rng(0).normal(0, 0.1, len(x))
    y[54_321] = 7.5
    curves = tuple(
        Curve(key=key, title=key, x=x, y=y)
        for key in ("ntp", "ncp", "vq", "lr", "grad_norm", "tokens_per_second")
    )
    page = render_page([run(curves=curves)])
    assert len(page) < 700_000
    chart = line_chart([Series(name="a", x=x, y=y, color=0)], title="t", x_range=(0, float(x[-1])))
    heights = [float(height) for height in re.findall(r"[ML][\d.]+ ([\d.]+)", chart)]
    assert min(heights) < 45 < 120 < max(heights)


def test_values_that_are_not_finite_are_counted_in_words() -> None:
    curve = Curve(key="ntp", title="t", x=[1.0, 2.0, 3.0], y=[1.0, math.nan, 2.0])
    assert "1 value not finite" in render_page([run(curves=(curve,))])


def test_stage_boundaries_are_drawn_and_labelled() -> None:
    one = Series(name="a", x=np.array([0.0, 50.0, 100.0]), y=np.array([3.0, 2.0, 1.0]), color=0)
    chart = line_chart(
        [one],
        title="t",
        x_range=(0, 100),
        boundaries=[Boundary(x=0, label="first"), Boundary(x=50, label="second")],
    )
    assert chart.count('class="stage"') == 1  # none at the very beginning
    assert re.findall(r'class="stage-label"[^>]*>([^<]*)<', chart) == ["first", "second"]


def test_labels_of_curves_that_end_together_do_not_overlap() -> None:
    series = [
        Series(name=f"run{n}", x=np.array([0.0, 1.0]), y=np.array([2.0, 1.0 + n * 1e-6]), color=n)
        for n in range(4)
    ]
    chart = line_chart(series, title="t", x_range=(0, 1))
    heights = sorted(float(y) for y in re.findall(r'class="value[^>]* y="([\d.]+)"', chart))
    assert len(heights) == 4 and min(b - a for a, b in pairwise(heights)) >= 12.9


def test_several_runs_share_charts_and_keep_their_own_tables() -> None:
    page = render_page([run("one"), run("two")])
    checker = check(page)
    assert page.count("<figure") == 2
    assert "".join(checker.text).count("Held-out text") == 4  # heading and tile, per run
    with pytest.raises(ValueError, match="no runs"):
        render_page([])


def test_only_numbers_of_one_mixture_are_compared() -> None:
    rows = (
        EvaluationRow(label="unigram", reference=True, mixture_bits_per_byte=3.0, mixture="first"),
        EvaluationRow(label="second", mixture_bits_per_byte=1.5, mixture="second"),
    )
    assert "x the unigram model" not in render_page([run(evaluations=rows)])
    named = (
        *rows,
        EvaluationRow(label="unigram", reference=True, mixture_bits_per_byte=2.5, mixture="second"),
    )
    assert "0.60x the unigram model" in render_page([run(evaluations=named)])


def test_a_comparison_says_how_much_less_is_needed() -> None:
    comparisons = (
        ComparisonView(baseline="base", candidate="ncp", target_loss=2.31, token_ratio=0.513, token_interval=(0.5, 0.53),
                       compute_ratio=0.62, final_gap=0.091, note="three seeds"),
        ComparisonView(baseline="base", candidate="<worse>", target_loss=2.31, token_ratio=None, final_gap=-0.02),
    )  # fmt: skip
    text = " ".join(check(render_page([run("ncp"), run("base")], comparisons)).text)
    for expected in (
        "51.3%",
        "1.95x",
        "[50.0%, 53.0%]",
        "62.0%",
        "1.61x",
        "+0.0910",
        "three seeds",
        "not reached",
        "<worse>",
    ):
        assert expected in text, expected


def test_several_runs_have_their_checkpoints_side_by_side() -> None:
    text = "".join(check(render_page([run("one"), run("two")])).text)
    assert "one / first" in text and "two / first" in text and "one / unigram" not in text


def test_a_run_that_has_only_begun_has_a_page() -> None:
    empty = RunReport(name="new", recipe="demo", status="waiting", created="now")
    assert "new" in "".join(check(render_page([empty])).text)
