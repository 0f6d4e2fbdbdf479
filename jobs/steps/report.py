"""The `report` step: one self-contained HTML page about the run, and the numbers behind its table."""

from __future__ import annotations

import hashlib
from typing import Any

from curriculum.schema import Recipe
from jobs.show.report.page import render_page
from jobs.show.run_report import run_report
from pipeline.dag.runner import StepContext


def execute(recipe: Recipe, context: StepContext) -> dict[str, Any]:
    key = f"{context.step.key}/attempts/{context.attempt:06d}/report.html"
    report = run_report(context.storage, context.run)
    page = render_page([report]).encode()
    context.storage.write_bytes(key, page)
    return {"report": key, "sha256": hashlib.sha256(page).hexdigest()}
