"""The pages of the dashboard and the records behind them, from storage. Knows nothing of HTTP."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np

from curriculum.errors import InputError, RecipeError
from jobs.runs.metric_series import MetricSeries
from jobs.runs.overview import RunOverview, run_overview, unreadable_overview
from jobs.runs.record import UnknownRun, UnreadableRun, check_run_name, list_runs
from jobs.show.compare_view import first_against_others
from jobs.show.dashboard.live import LIVE_SCRIPT
from jobs.show.dashboard.run_table import run_table
from jobs.show.report.model import Curve
from jobs.show.report.page import document, several_runs
from jobs.show.report.scale import thin
from jobs.show.report.sections import run_sections
from jobs.show.run_report import run_report
from pipeline.storage import Storage

FRESH_SECONDS = 1.0
"""Several readers of one page cost one reading of storage in so many seconds."""
AT_REST_SECONDS = 30.0
"""A run that is done is looked at again only after so long in the list of runs."""
KEPT_SERIES = 32
"""Trajectories whose metrics are kept, the last ones looked at."""
SERIES_BUCKETS = 250
"""A downsampled curve has at most four points a bucket, however long the run."""
COMPARED = 8
"""Runs on one page, at most: there are eight colours."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Sections:
    """The live parts of a page."""

    live: bool
    """Something is running: look again soon."""
    html: Mapping[str, str]

    def changed(self, have: Sequence[str]) -> dict[str, list[str]]:
        """Name -> [digest, html] of the sections whose digest the reader does not have."""
        found = {name: [digest(html), html] for name, html in self.html.items()}
        return {name: pair for name, pair in found.items() if pair[0] not in have}


class Site:
    """One storage's dashboard. Safe to use from several threads."""

    def __init__(self, storage: Storage):
        self.storage = storage
        self._series: OrderedDict[str, MetricSeries] = OrderedDict()
        self._kept: dict[tuple[str, str], tuple[float, Any]] = {}
        self._lock = threading.Lock()
        self._busy: dict[tuple[str, str], threading.Lock] = {}

    # --- pages -----------------------------------------------------------------------------------------------

    def index_page(self) -> str:
        return self._live_page("ncp runs", "/sections", self.index_sections())

    def run_page(self, run: str) -> str:
        """Raises RecipeError for a run that does not exist."""
        return self._live_page(f"{run} - ncp", f"/runs/{run}/sections", self.run_sections(run))

    def compare_page(self, runs: Sequence[str]) -> str:
        """Several runs side by side. Raises RecipeError for one that does not exist, or for too many."""
        names = list(dict.fromkeys(runs))
        if not 2 <= len(names) <= COMPARED:
            raise RecipeError(f"compare: {len(names)} runs; choose 2 to {COMPARED}")
        reports = [self._report(name) for name in names]
        body = several_runs(reports, *first_against_others(self.storage, names))
        return document("ncp compare", f"<main>{self._nav(names=names)}{body}</main>")

    # --- live parts ------------------------------------------------------------------------------------------

    def index_sections(self) -> Sections:
        return self._fresh(("index", ""), FRESH_SECONDS, self._make_index)

    def run_sections(self, run: str) -> Sections:
        """Raises RecipeError for a run that does not exist."""
        check_run_name(run)
        return self._fresh(("run", run), FRESH_SECONDS, lambda: self._make_run(run))

    # --- records ---------------------------------------------------------------------------------------------

    def run_list(self) -> list[str]:
        return list_runs(self.storage)

    def run_record(self, run: str) -> dict[str, Any]:
        """What `ncp status RUN --json` prints. Raises RecipeError for a run that does not exist."""
        check_run_name(run)
        return self._overview(run).record()

    def series_record(self, run: str) -> dict[str, Any]:
        """The run's curves, thinned to a size that does not grow with the run; missing values are null."""
        report = self._report(run)
        return {"run": run, "curves": {curve.key: _thinned(curve) for curve in report.curves}}

    # --- internals -------------------------------------------------------------------------------------------

    def _make_index(self) -> Sections:
        overviews = [found for name in self.run_list() if (found := self._listed(name)) is not None]
        overviews.sort(key=lambda overview: -(overview.status.created or 0.0))
        return Sections(
            live=any(overview.status.state == "running" for overview in overviews),
            html={"runs": run_table(overviews)},
        )

    def _make_run(self, run: str) -> Sections:
        report = self._report(run)
        return Sections(live=report.status.startswith("running"), html=run_sections(report))

    def _report(self, run: str) -> Any:
        check_run_name(run)
        return self._fresh(
            ("report", run),
            FRESH_SECONDS,
            lambda: run_report(self.storage, run, columns=lambda key: self._trajectory(key).look()),
        )

    def _overview(self, run: str) -> RunOverview:
        found: RunOverview = self._fresh(
            ("overview", run), FRESH_SECONDS, lambda: run_overview(self.storage, run)
        )
        if found.status.state == "done":
            with self._lock:
                self._kept["overview", run] = (time.monotonic() + AT_REST_SECONDS, found)
        return found

    def _listed(self, run: str) -> RunOverview | None:
        """The overview for the list: marked when the run's record cannot be read, None when it is gone by now."""
        try:
            return self._overview(run)
        except UnknownRun:
            return None
        except InputError as error:
            return unreadable_overview(UnreadableRun(run=run, reason=str(error)))

    def _trajectory(self, key: str) -> MetricSeries:
        with self._lock:
            series = self._series.pop(key, None) or MetricSeries(self.storage, key)
            self._series[key] = series
            while len(self._series) > KEPT_SERIES:
                self._series.popitem(last=False)
            return series

    def _fresh(self, key: tuple[str, str], seconds: float, make: Callable[[], T]) -> T:
        """`make()`, or what it gave a moment ago; of several callers at once one works and the others wait."""
        with self._lock:
            busy = self._busy.setdefault(key, threading.Lock())
        with busy:
            until, value = self._kept.get(key, (0.0, None))
            if time.monotonic() < until:
                return value
            try:
                made = make()
            except InputError:
                with self._lock:  # names that do not exist must not pile up
                    self._kept.pop(key, None)
                    self._busy.pop(key, None)
                raise
            with self._lock:
                self._kept[key] = (time.monotonic() + seconds, made)
            return made

    def _live_page(self, title: str, source: str, sections: Sections) -> str:
        body = "".join(
            f'<section id="{name}" data-digest="{digest(html)}">{html}</section>'
            for name, html in sections.html.items()
        )
        live = "1" if sections.live else "0"
        main = f'<main data-sections="{escape(source, quote=True)}" data-live="{live}">{self._nav()}{body}</main>'
        return document(title, main, script=LIVE_SCRIPT)

    def _nav(self, names: Sequence[str] = ()) -> str:
        links = "".join(f'<a href="/runs/{quote(name)}">{escape(name)}</a>' for name in names)
        sign = "" if names else '<span class="live" role="status"></span>'
        return f'<nav><a href="/">runs</a>{links}<span class="mono">{escape(self.storage.url)}</span>{sign}</nav>'


def digest(html: str) -> str:
    """A short name for a section's content."""
    return hashlib.sha256(html.encode(errors="replace")).hexdigest()[:12]


def _thinned(curve: Curve) -> dict[str, Any]:
    x, y = thin(np.asarray(curve.x, dtype=float), np.asarray(curve.y, dtype=float), SERIES_BUCKETS)
    return {
        "title": curve.title,
        "unit": curve.unit,
        "tokens": x.tolist(),
        "values": [value if np.isfinite(value) else None for value in y.tolist()],
    }
