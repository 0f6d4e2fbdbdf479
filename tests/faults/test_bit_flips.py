"""A flipped bit in any durable file of a finished run is named by whoever reads the file, or changes nothing.

`make faults` flips 300 bits of a two-stage run and keeps the table in docs/bit_flips.md; `make check` a few of a small one.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from curriculum.errors import InputError
from jobs.analysis.run_compare import compare_runs
from jobs.runs.alerts import alert_keys, read_alert
from jobs.runs.checkpoint_ref import find_checkpoint
from jobs.runs.evaluation_table import evaluation_rows
from jobs.runs.garbage import COLLECTOR, unnamed
from jobs.runs.log import read_run_log
from jobs.runs.metric_log import read_metrics
from jobs.runs.overview import run_overview
from jobs.runs.record import list_runs, read_run
from jobs.runs.verify import verify_run
from jobs.training.load_checkpoint import load_checkpoint
from pipeline.dag.lease import LeaseBook
from pipeline.dag.store import StepStore
from pipeline.data.loader import WindowLoader
from pipeline.data.manifest import Manifest
from pipeline.data.pins import load_pin
from pipeline.data.readers import Reader
from pipeline.storage import Storage
from tests.ncp_process import ROOT, ncp

TABLE = ROOT / "docs" / "bit_flips.md"
HARMLESS = {
    "beat": "heartbeats of leases that are over",
    "end": "marks of leases that are over, which are empty",
    "probe": "proofs that storage can be written",
    "gc": "records of collections that are over",
}
"""Kinds of files that nobody decides anything by."""


def kind_of(key: str) -> str:
    """A file's kind, as the table names it."""
    parts = key.split("/")
    if key.startswith("runs/"):
        return f"runs: {parts[2]}" if len(parts) > 2 else "runs"
    if key.startswith("steps/"):
        step = parts[1].rpartition("-")[0].rstrip("0123456789")
        rest = "/".join(parts[2:-1]) or parts[-1]
        return f"{'shards' if step.startswith('shards') else step}: {rest.split('/')[0]}"
    return parts[0]


def harmless(key: str) -> bool:
    name = key.rpartition("/")[2]
    return (
        name.endswith((".beat", ".end"))
        or key.startswith("gc/")
        or ".probe" in key
        or "/stacks/" in key
        or "/ray-train/" in key
    )


def readings(storage: Storage, run: str) -> dict[str, str]:
    """Everything that reads the run, as a digest of what it says or the error it ends in."""
    return {name: _told(lambda read=read: read(storage, run)) for name, read in READERS.items()}


def _told(read: Callable[[], Any]) -> str:
    heard = io.StringIO()
    try:
        with contextlib.redirect_stderr(heard):
            said = read()
    except (InputError, FileNotFoundError) as error:
        return f"refused: {error}"
    told = heard.getvalue()
    return hashlib.sha256(repr(said).encode()).hexdigest() + (f" but said: {told}" if told else "")


def _steps(storage: Storage, run: str, kind: str) -> Iterator[dict[str, Any]]:
    yield from (step for step in read_run(storage, run)["steps"] if step["kind"] == kind)


def _weights(storage: Storage, run: str) -> Any:
    sums = []
    for step in _steps(storage, run, "stage"):
        model, tokenizer = load_checkpoint(
            storage, find_checkpoint(storage, f"{run}/{step['name']}@{step['milestone']}")
        )
        digest = hashlib.sha256()
        for name, tensor in sorted(model.state_dict().items()):
            digest.update(name.encode() + tensor.contiguous().view(torch.uint8).numpy().tobytes())
        sums.append((digest.hexdigest(), tokenizer.sha256))
    return sums


def _windows(storage: Storage, run: str) -> Any:
    seen = []
    for step in _steps(storage, run, "shards"):
        manifest = Manifest.load(storage, step["key"])
        loader = WindowLoader(
            storage=storage,
            outputs={manifest.source: step["key"]},
            weights={manifest.source: 1.0},
            block=16,
            seed=0,
            sequence_length=64,
            global_batch_tokens=64 * 16,
        )
        seen += [loader.batch(number, 0, 1, 16)[0].digest for number in range(12)]
    return seen


def _heldout(storage: Storage, run: str) -> Any:
    from pipeline.data.heldout import heldout_documents

    return [
        [(one.doc_key, one.input_ids.tolist()) for one in heldout_documents(storage, step["key"])]
        for step in _steps(storage, run, "shards")
    ]


def _sources(storage: Storage, run: str) -> Any:
    from curriculum.load import load_recipe
    from pipeline.data.counters import Counters
    from pipeline.data.quarantine import Quarantine

    recipe = load_recipe(str(ROOT / "tests" / "two_stages.yaml"))
    texts = []
    for name, spec in recipe.sources.items():
        pin = load_pin(storage, name, spec, None)
        assert pin is not None
        reader = Reader(max_line_bytes=1 << 20, counters=Counters(), quarantine=Quarantine())
        for file in pin.files:
            texts += [
                hashlib.sha256(one.text.encode()).hexdigest()
                for one in reader.documents(pin.open_root(storage), file)
            ]
    return texts


def _records(storage: Storage, run: str) -> Any:
    found = []
    for step in read_run(storage, run)["steps"]:
        store = StepStore(storage, step["key"])
        found.append(
            (
                store.identity(), store.receipt(), store.progress(), store.failure(),
                [store.milestone(number) for number in store.milestones()],
                LeaseBook(storage, step["key"]).look(),
                [read_alert(storage, key) for key in alert_keys(storage, step["key"])],
            )
        )  # fmt: skip
    return found


def _tell(why: str) -> None:
    """What a reader says beside what it shows: in a note, an alert or a line of its text."""
    print(why, file=sys.stderr)


def _status(storage: Storage, run: str) -> Any:
    overview = run_overview(storage, run)
    for alert in overview.alerts:
        if alert.kind == "unreadable":
            _tell(alert.message)
    return [(stage.name, stage.steps_done, dict(stage.metrics)) for stage in overview.stages]


def _log(storage: Storage, run: str) -> Any:
    text = "".join(read_run_log(storage, run))
    for line in text.splitlines():
        if line.startswith("[damaged: "):
            _tell(line)
    return text


def _compared(storage: Storage, run: str) -> Any:
    record = compare_runs(storage, [run], [run]).record()
    for note in record["notes"]:
        if note.startswith("left out: "):
            _tell(note)
    return record


def _collection(storage: Storage, run: str) -> Any:
    found = unnamed(storage)
    for item in found:
        if item.kept:
            _tell(item.kept)
    return found, LeaseBook(storage, f"{COLLECTOR}/collector").look()


READERS: dict[str, Callable[[Storage, str], Any]] = {
    "runs": lambda storage, run: list_runs(storage),
    "record": read_run,
    "records of steps": _records,
    "status": _status,
    "log": _log,
    "metrics": lambda storage, run: [
        [(row.step, row.values) for row in read_metrics(storage, step["key"])]
        for step in _steps(storage, run, "stage")
    ],
    "weights": _weights,
    "windows": _windows,
    "held-out documents": _heldout,
    "text": _sources,
    "evaluations": lambda storage, run: [
        (row.stage, row.kind, row.result)
        for row in evaluation_rows(storage, read_run(storage, run), on_damage=_tell)
    ],
    "compare": _compared,
    "collection": _collection,
    "ncp verify": lambda storage, run: verify_run(storage, run).problems,
}


def names(told: str, key: str) -> bool:
    """Whether what was said names the file, or the milestone or run that it belongs to."""
    parts = key.split("/")
    return key in told or parts[-1] in told or (parts[0] == "runs" and parts[1] in told)


def flip_and_read(store: Path, flips: int, seed: int) -> dict[str, Counter[str]]:
    """Flip one bit at a time; returns per kind of file how it went. Fails at the first silent one."""
    storage = Storage(str(store))
    (run,) = list_runs(storage)
    base = readings(storage, run)
    assert not [name for name, said in base.items() if said.startswith("refused")], base
    by_kind: dict[str, list[str]] = {}
    for key in storage.keys(""):
        if storage.size(key):
            by_kind.setdefault(kind_of(key), []).append(key)
    draw = random.Random(seed)
    outcome: dict[str, Counter[str]] = {kind: Counter() for kind in sorted(by_kind)}
    for number in range(flips):
        kind = sorted(by_kind)[number % len(by_kind)]
        key = draw.choice(by_kind[kind])
        path = store / key
        data = bytearray(path.read_bytes())
        position = draw.randrange(len(data) * 8)
        data[position // 8] ^= 1 << position % 8
        kept = path.read_bytes()
        try:
            path.write_bytes(data)
            found = readings(storage, run)
        finally:
            path.write_bytes(kept)
        changed = {name: said for name, said in found.items() if said != base[name]}
        if not changed:
            assert harmless(key), f"bit {position} of {key}: nobody noticed"
            outcome[kind]["harmless"] += 1
            continue
        verified = verify_of(found)
        silent = [
            name
            for name, said in changed.items()
            if not ("refused: " in said or "said: " in said or name == "ncp verify")
        ]
        assert not silent, f"bit {position} of {key}: {silent} read something else without a word"
        assert harmless(key) or verified or any(names(said, key) for said in changed.values()), (
            f"bit {position} of {key}: damage is told but not where: {changed}"
        )
        outcome[kind]["named"] += 1
    return outcome


def verify_of(found: dict[str, str]) -> bool:
    return found["ncp verify"] != hashlib.sha256(repr([]).encode()).hexdigest()


def test_a_few_flipped_bits_are_named(uninterrupted: Path, tmp_path: Path) -> None:
    shutil.copytree(uninterrupted, tmp_path / "store")
    outcome = flip_and_read(tmp_path / "store", 24, seed=0)
    assert sum(found["named"] for found in outcome.values()) > 12


@pytest.mark.matrix
def test_three_hundred_flipped_bits_are_named_or_harmless(
    two_stages_uninterrupted: Storage, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(two_stages_uninterrupted.path(""), store)
    (other,) = (
        path.name for path in (store / "runs").glob("small-*")
    )  # what its first stage was copied from
    for words in (("runs", "rm", other, "--yes"), ("gc", "--yes")):
        code, output = ncp(store, *words)
        assert code == 0, output
    outcome = flip_and_read(store, 300, seed=1)
    total = Counter[str]()
    lines = ["| file | flips | named | harmless | silent |", "|---|---:|---:|---:|---:|"]
    for kind, found in outcome.items():
        total += found
        lines.append(f"| {kind} | {found.total()} | {found['named']} | {found['harmless']} | 0 |")
    lines.append(f"| all | {total.total()} | {total['named']} | {total['harmless']} | 0 |")
    why = "\n".join(f"- {name}: {reason}" for name, reason in HARMLESS.items())
    TABLE.write_text(
        "# Flipped bits\n\nOne random bit at a time in the files of a finished two-stage run, then everything that reads it "
        "(`make faults`).\n\n"
        + "\n".join(lines)
        + f"\n\nHarmless, because nothing is decided by them:\n\n{why}\n"
    )
    assert total.total() == 300
