"""Staging: a pinned source into shards and a manifest, by Ray Data.

Ray Data runs one task per row of a plan table and gives back-pressure, retries and spreading over a cluster. What it
does not give - order, names, idempotence - is ours: a task writes files whose names and bytes depend on its group
alone and returns its receipt, so neither Ray's block layout nor its order of completion is ever seen in the result.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import ray
import ray.data
from ray.data import TaskPoolStrategy

from curriculum.schema import DataSpec, SourceSpec
from pipeline.data.errors import SourceError
from pipeline.data.finish import check_tolerance, finish_source
from pipeline.data.groups import Group, plan_groups
from pipeline.data.manifest import Manifest
from pipeline.data.pins import Pin
from pipeline.data.tokenize_group import GroupReceipt, load_receipt, tokenize_group
from pipeline.data.tokenizer import Tokenizer
from pipeline.storage import Storage

Progress = Callable[[dict[str, Any]], None]


class StagingSuperseded(RuntimeError):
    """Another attempt holds the step now; this one stopped without writing a manifest."""


def stage_source(
    *,
    storage: Storage,
    output: str,
    pin: Pin,
    spec: SourceSpec,
    data: DataSpec,
    tokenizer_key: str,
    parallelism: int,
    cpus_per_task: float,
    cleaning: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    is_current: Callable[[], bool] | None = None,
) -> Manifest:
    """Tokenize every group of `pin` that has no receipt yet, then write and return the manifest.

    Needs an initialised Ray whose workers can reach `storage` and the pin's location. At most `parallelism` tasks of
    `cpus_per_task` logical CPUs run at once, one thread each. `progress` is called after every group with counts and
    rates; `is_current` before and after, and a False stops the work with StagingSuperseded. `cleaning` goes into the manifest.

    Raises SourceError naming the source: damaged or changed files, more bad lines than `data.bad_line_tolerance`,
    or no document left to train on.
    """
    tokenizer = Tokenizer.load(storage, tokenizer_key)
    groups = plan_groups(pin, data)
    receipts = {
        group.number: receipt
        for group in groups
        if (receipt := load_receipt(storage, output, group, tokenizer.sha256)) is not None
    }
    report = _Report(pin.source, groups, receipts.values(), progress)
    todo = [group for group in groups if group.number not in receipts]
    check_tolerance(storage, output, pin, data, groups, receipts)
    if todo:
        # Cleaning has written the documents anew, under the usual names.
        read_as = spec if cleaning is None else replace(spec, text_key="text", id_key="")
        work = _GroupTask(storage, output, pin, read_as, data, tokenizer_key)
        for group, receipt in _run(work, todo, parallelism, cpus_per_task):
            receipts[group.number] = receipt
            check_tolerance(storage, output, pin, data, groups, receipts)
            if is_current is not None and not is_current():
                raise StagingSuperseded(f"{output}: another attempt took over")
            report.done(group, receipt)
    in_order = [receipts[group.number] for group in groups]
    return finish_source(storage, output, pin, data, tokenizer, in_order, cleaning)


def _run(
    work: _GroupTask, todo: list[Group], parallelism: int, cpus_per_task: float
) -> Iterable[tuple[Group, GroupReceipt]]:
    """Finished groups, in whatever order they finish."""
    ray.data.DataContext.get_current().enable_progress_bars = False  # `progress` is ours, and counts tokens
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    by_number = {group.number: group for group in todo}
    work.groups = by_number
    plan = ray.data.from_items([{"group": number} for number in by_number], override_num_blocks=len(todo))
    finished = plan.map(
        work, num_cpus=cpus_per_task, compute=TaskPoolStrategy(size=max(1, min(parallelism, len(todo))))
    )
    for row in finished.iter_rows():
        if row["error"]:
            raise SourceError(row["error"])
        group = by_number[row["group"]]
        receipt = load_receipt(work.storage, work.output, group, row["tokenizer"])
        assert receipt is not None, f"group {group.name} came back without a receipt"
        yield group, receipt


class _GroupTask:
    """What a Ray task does with one row of the plan. Users' errors come back as text, bugs as exceptions."""

    def __init__(
        self, storage: Storage, output: str, pin: Pin, spec: SourceSpec, data: DataSpec, tokenizer_key: str
    ):
        self.storage, self.output, self.pin = storage, output, pin
        self.spec, self.data, self.tokenizer_key = spec, data, tokenizer_key
        self.text_key, self.id_key = spec.text_key, spec.id_key
        self.groups: dict[int, Group] = {}

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread per task; parallelism is Ray's
        tokenizer = Tokenizer.load(self.storage, self.tokenizer_key)
        try:
            tokenize_group(
                storage=self.storage,
                output=self.output,
                root=self.pin.open_root(self.storage),
                source=self.pin.source,
                group=self.groups[row["group"]],
                special_tokens=self.spec.special_tokens,
                data=self.data,
                tokenizer=tokenizer,
                token_dtype=self.spec.token_dtype,
                text_key=self.text_key,
                id_key=self.id_key,
            )
        except SourceError as error:
            return {
                "group": row["group"],
                "tokenizer": tokenizer.sha256,
                "error": f"{self.pin.source}: {error}",
            }
        return {"group": row["group"], "tokenizer": tokenizer.sha256, "error": ""}


class _Report:
    """Turns finished groups into progress records: counts of all, rates and ETA of this attempt."""

    def __init__(self, source: str, groups: list[Group], done: Iterable[GroupReceipt], sink: Progress | None):
        self._source, self._sink, self._started = source, sink, time.monotonic()
        weights = {group.number: sum(file.weight for file in group.files) for group in groups}
        self._groups, self._weight = len(groups), sum(weights.values())
        self._groups_done, self._weight_done = 0, 0
        self._documents, self._tokens = 0, 0
        for receipt in done:
            self._groups_done += 1
            self._weight_done += weights[receipt.group]
            self._count(receipt)
        self._start = (self._weight_done, self._documents, self._tokens)

    def done(self, group: Group, receipt: GroupReceipt) -> None:
        self._groups_done += 1
        self._weight_done += sum(file.weight for file in group.files)
        self._count(receipt)
        if self._sink is None:
            return
        seconds = max(time.monotonic() - self._started, 1e-9)
        weight_rate = (self._weight_done - self._start[0]) / seconds
        self._sink(
            {
                "source": self._source,
                "groups_done": self._groups_done,
                "groups": self._groups,
                "documents": self._documents,
                "tokens": self._tokens,
                "documents_per_second": (self._documents - self._start[1]) / seconds,
                "tokens_per_second": (self._tokens - self._start[2]) / seconds,
                "eta_seconds": (self._weight - self._weight_done) / weight_rate if weight_rate else None,
            }
        )

    def _count(self, receipt: GroupReceipt) -> None:
        self._documents += receipt.counters.documents_read
        self._tokens += receipt.counters.tokens_written + receipt.counters.tokens_held_out
