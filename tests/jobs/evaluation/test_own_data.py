"""Questions from the HF Hub (a loopback server) and from a directory, by the same loader as the published package."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from curriculum.load import load_recipe
from curriculum.schema import EvaluationSpec
from jobs.evaluation.job import EvaluationData
from jobs.evaluation.own_data import fetch_evaluation_data, questions_from
from jobs.evaluation.readers import load_requests
from jobs.evaluation.suites import SuiteError, find_suite, suite_tasks
from pipeline.data.errors import ChangedSincePinned, SourceError
from pipeline.data.pins import make_pin
from pipeline.storage import Storage
from tests.hub_server import Hub, serving

REPO = "someone/questions"
PATH = "oe_eval_tasks/capitals/rc/requests.jsonl.gz"


def lines(count: int) -> bytes:
    records = [
        {"doc_id": n, "idx": idx, "label": 0, "request": {"context": f"Q{n}:", "continuation": answer}}
        for n in range(count)
        for idx, answer in enumerate((" Rome", " Oslo"))
    ]
    return gzip.compress("".join(json.dumps(record) + "\n" for record in records).encode(), mtime=0)


def pinned(storage: Storage, location: str) -> EvaluationData:
    recipe, spec = questions_from(load_recipe("demo"), EvaluationSpec(), location)
    place = recipe.runtime.locations[spec.data]
    pin = make_pin(storage, spec.data, recipe.sources[spec.data], place)
    return EvaluationData(source=spec.data, spec=recipe.sources[spec.data], location=place, digest=pin.digest)


def test_a_hub_dataset_by_its_id_is_read_like_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCP_ASSETS", str(tmp_path / "cache"))
    hub = Hub(REPO)
    hub.files[PATH] = lines(5)
    hub.files["README.md"] = b"# Questions"
    storage = Storage(str(tmp_path / "store"))
    with serving(hub, monkeypatch):
        data = pinned(storage, REPO)
        folder = fetch_evaluation_data(storage, data)
        fetched = hub.requests["file"]
        assert fetch_evaluation_data(storage, data) == folder and hub.requests["file"] == fetched  # once
    assert not (folder / "README.md").exists()
    (task,) = suite_tasks("oe:capitals/rc")
    requests = load_requests(folder, task.location)
    assert len(requests) == 10 and requests[0].continuation == " Rome" and requests[0].gold


def test_the_same_questions_have_the_same_identity_wherever_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCP_ASSETS", str(tmp_path / "cache"))
    digests = set()
    for name in ("one", "two"):
        file = tmp_path / name / PATH
        file.parent.mkdir(parents=True)
        file.write_bytes(lines(5))
        digests.add(pinned(Storage(str(tmp_path / f"store-{name}")), str(tmp_path / name)).digest)
    assert len(digests) == 1


def test_questions_that_changed_since_they_were_pinned_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCP_ASSETS", str(tmp_path / "cache"))
    file = tmp_path / "data" / PATH
    file.parent.mkdir(parents=True)
    file.write_bytes(lines(5))
    storage = Storage(str(tmp_path / "store"))
    data = pinned(storage, str(tmp_path / "data"))
    file.write_bytes(lines(6))
    with pytest.raises(ChangedSincePinned):
        fetch_evaluation_data(storage, data)
    assert not list((tmp_path / "cache").glob("questions-*"))


def test_a_place_without_questions_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="empty"):
        pinned(Storage(str(tmp_path / "store")), str(tmp_path / "empty"))


def test_a_task_of_ones_own_names_its_metric() -> None:
    assert suite_tasks("oe:capitals/rc")[0].metric == "accuracy"
    assert suite_tasks("oe:capitals/rc#bits_per_byte")[0].gold_only
    assert find_suite("oe:capitals/rc") == {"capitals": ("oe:capitals/rc",)}
    with pytest.raises(SuiteError, match="'acuracy'"):
        suite_tasks("oe:capitals/rc#acuracy")
