"""An evaluation on Ray actors: the same bytes whoever works, whatever is killed, and nothing done twice."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from curriculum.schema import EvaluationSpec, RuntimeSpec, SourceSpec
from jobs.evaluation.examiner import PoisonedQuestion
from jobs.evaluation.job import EvaluationData, EvaluationJob
from jobs.evaluation.own_data import GLOBS
from jobs.evaluation.worker import EvaluationWorker, NoMilestone
from jobs.runs.checkpoint_files import DamagedMilestone
from jobs.steps.evaluation import evaluate_sharded
from pipeline.dag.store import StepStore
from pipeline.data.pins import make_pin
from pipeline.storage import Storage
from tests.checkpointed import STEPS, TRAJECTORY, checkpoint_job, make_checkpoint

pytestmark = pytest.mark.timeout(900)  # actors import torch, which takes a busy machine minutes

RUNTIME = RuntimeSpec(cpus_per_worker=0.4, evaluation_actors=1)
ROOT = f"{TRAJECTORY}/evaluations/{STEPS:09d}"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def undisturbed(
    checkpoint: Storage, ray_session: None, olmo_eval: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Storage, dict[str, Any]]:
    """The evaluation by one actor that nothing happened to."""
    storage = copy(checkpoint, tmp_path_factory.mktemp("undisturbed"))
    return storage, evaluate_sharded(checkpoint_job(storage), RUNTIME)


@pytest.fixture
def storage(checkpoint: Storage, tmp_path: Path) -> Storage:
    return copy(checkpoint, tmp_path)


def copy(storage: Storage, folder: Path) -> Storage:
    shutil.copytree(storage.root, folder / "store")
    return Storage(str(folder / "store"))


def tables(storage: Storage) -> dict[str, dict[str, Any]]:
    """Pieces' records by key, without what only says who did it and how fast."""
    records = {key: storage.read_json(key) for key in storage.keys(ROOT) if "/suites/" not in key}
    return {key: {"piece": record["piece"], "table": record["table"]} for key, record in records.items()}


def suites(storage: Storage) -> dict[str, bytes]:
    return {key: storage.read_bytes(key) for key in storage.keys(f"{ROOT}/suites")}


def test_a_killed_actor_is_replaced_and_two_actors_leave_the_bytes_of_one(
    storage: Storage, undisturbed: tuple[Storage, dict[str, Any]]
) -> None:
    killed: list[int] = []
    progress: dict[str, Any] = {}

    def kill_one_at_work() -> None:
        done = [key for key in storage.keys(ROOT) if "/suites/" not in key]
        if done and not killed:
            killed.append(storage.read_json(done[0])["process"])
            os.kill(killed[0], signal.SIGKILL)

    result = evaluate_sharded(
        checkpoint_job(storage),
        replace(RUNTIME, evaluation_actors=2),
        check=kill_one_at_work,
        report=progress.update,
    )
    assert killed and progress["actors_lost"] == 1 and progress["done"] == progress["total"] == 6
    reference, expected = undisturbed
    assert result["result"] == expected["result"]
    assert tables(storage) == tables(reference)
    assert suites(storage) == suites(reference)


@pytest.mark.matrix
def test_an_ended_evaluation_goes_on_with_the_pieces_that_are_missing(
    storage: Storage, undisturbed: tuple[Storage, dict[str, Any]]
) -> None:
    class Ended(Exception):
        pass

    def end_after_two() -> None:
        if len(storage.keys(ROOT)) >= 2:
            raise Ended

    with pytest.raises(Ended):
        evaluate_sharded(checkpoint_job(storage), RUNTIME, check=end_after_two)
    before = {key: storage.read_bytes(key) for key in storage.keys(ROOT)}
    assert 2 <= len(before) < 6
    result = evaluate_sharded(checkpoint_job(storage, attempt=2), RUNTIME)
    assert {key: storage.read_bytes(key) for key in before} == before  # nothing was done again
    assert result["result"] == undisturbed[1]["result"]
    assert suites(storage) == suites(undisturbed[0])


def test_the_numbers_of_a_suite_lie_at_one_key_with_everything_they_hang_on(
    undisturbed: tuple[Storage, dict[str, Any]],
) -> None:
    storage, receipt = undisturbed
    assert receipt["suites"] == {
        "copa": f"{ROOT}/suites/copa.json",
        "heldout": f"{ROOT}/suites/heldout-2048.json",
    }
    record = storage.read_json(receipt["suites"]["copa"])
    assert record["checkpoint"]["step"] == STEPS and record["checkpoint"]["tokens_total"] == STEPS * 512
    task = record["tasks"]["copa"]
    assert task["n"] == record["questions"] == 99 and record["skipped"] == 1  # one is longer than 64 tokens
    assert task["value"] == task["accuracy"]
    assert task["stderr"] == task["accuracy_stderr"] > 0
    for digest in (
        *(record[f"{name}_sha256"] for name in ("data", "tokenizer", "code")),
        task["requests_sha256"],
    ):
        assert len(digest) == 64
    assert receipt["timing"].keys() == {"copa", "held-out prose"}  # so that slow tasks can be told


def test_what_was_answered_for_one_suite_is_not_asked_again_for_another(
    undisturbed: tuple[Storage, dict[str, Any]], tmp_path: Path
) -> None:
    storage = copy(undisturbed[0], tmp_path)
    before = tables(storage)
    worker = EvaluationWorker(checkpoint_job(storage, attempt=9))
    pieces = worker.pieces()
    assert [worker.work(piece) for piece in pieces] == [0.0] * 6
    assert worker.loads == 0  # the model was not even read
    assert worker.finish(pieces)["result"] == undisturbed[1]["result"] and tables(storage) == before


def test_a_checkpoint_without_its_marker_is_never_evaluated(storage: Storage, olmo_eval: Path) -> None:
    StepStore(storage, TRAJECTORY).retract_milestone(STEPS)  # as one that is being written
    with pytest.raises(NoMilestone, match="no complete milestone at step 3"):
        EvaluationWorker(checkpoint_job(storage)).pieces()
    assert storage.keys(ROOT) == []


def test_a_damaged_checkpoint_is_named_and_nothing_is_published(storage: Storage, olmo_eval: Path) -> None:
    marker = StepStore(storage, TRAJECTORY).milestone(STEPS)
    assert marker is not None
    victim = max(marker["files"], key=marker["files"].get)
    key = f"{marker['data']}/{victim}"
    storage.write_bytes(key, storage.read_bytes(key)[:-100])
    worker = EvaluationWorker(checkpoint_job(storage))
    with pytest.raises(DamagedMilestone, match="bytes, its marker says"):
        worker.work(worker.pieces()[0])
    assert storage.keys(ROOT) == []


def own_questions(
    storage: Storage, folder: Path, monkeypatch: pytest.MonkeyPatch, records: list[dict[str, Any]]
) -> EvaluationJob:
    """The checkpoint asked questions of a local directory."""
    monkeypatch.setenv("NCP_ASSETS", str(folder / "cache"))
    path = folder / "data" / "oe_eval_tasks" / "capitals" / "rc" / "requests.jsonl.gz"
    path.parent.mkdir(parents=True)
    with gzip.open(path, "wt", encoding="utf-8", errors="surrogatepass") as file:
        for record in records:
            file.write(json.dumps(record) + "\n")
    spec = SourceSpec(globs=GLOBS)
    pin = make_pin(storage, "capitals", spec, str(folder / "data"))
    return checkpoint_job(
        storage,
        spec=EvaluationSpec(suites=("oe:capitals/rc",), heldout_tokens=0),
        data=EvaluationData(source="capitals", spec=spec, location=None, digest=pin.digest),
    )


def question(number: int, *answers: str) -> list[dict[str, Any]]:
    return [
        {
            "doc_id": number,
            "idx": index,
            "label": 0,
            "request": {"context": f"Question {number}:", "continuation": answer},
        }
        for index, answer in enumerate(answers)
    ]


def test_questions_of_ones_own_are_asked_and_what_does_not_fit_is_counted(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [*question(0, " Rome", " Oslo"), *question(1, " Oslo" * 90, " Bern"), *question(2, " a", " b")]
    worker = EvaluationWorker(own_questions(storage, tmp_path, monkeypatch, records))
    pieces = worker.pieces()
    for piece in pieces:
        worker.work(piece)
    task = worker.finish(pieces)["result"]["tasks"]["oe:capitals/rc"]
    assert (task["questions"], task["skipped"]) == (2, 1)
    assert list(worker.finish(pieces)["suites"].values()) == [
        f"{ROOT}/suites/oe_capitals_rc-{worker.job.data.digest[:8]}.json"  # type: ignore[union-attr]
    ]


def test_a_poisoned_question_is_named(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [*question(0, " Rome", " Oslo"), *question(7, " Bern", " \ud800")]  # half a surrogate pair
    worker = EvaluationWorker(own_questions(storage, tmp_path, monkeypatch, records))
    (piece,) = worker.pieces()
    with pytest.raises(PoisonedQuestion, match=r"question 7 of oe:capitals/rc cannot be scored"):
        worker.work(piece)
