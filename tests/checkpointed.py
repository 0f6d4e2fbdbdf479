"""A complete checkpoint of a tiny model, trained a few steps in this process: for tests of what comes after training."""

from __future__ import annotations

from pathlib import Path

from curriculum.schema import EvaluationSpec
from jobs.evaluation.job import EvaluationJob
from jobs.training.train_loop import train
from pipeline.storage import Storage
from tests.staged import stage_prose
from tests.training import SHARDS, SMALL_MODEL, one_rank, small_job

STEPS = 3
TRAJECTORY = "steps/stage1-0123456789ab"
MODEL = SMALL_MODEL


def make_checkpoint(folder: Path) -> Storage:
    """A storage with staged prose, its tokenizer, and TRAJECTORY at STEPS."""
    storage = Storage(str(folder / "store"))
    tokenizer = stage_prose(storage, SHARDS)
    storage.write_bytes("tokenizer.json", tokenizer.data)
    job = small_job(storage.url, "", stop=STEPS, attempt=0, step_key=TRAJECTORY, checkpoint_every_steps=STEPS)
    with one_rank(folder):
        train(job)
    return storage


def checkpoint_job(storage: Storage, **changes: object) -> EvaluationJob:
    """COPA in five pieces and a little held-out text, asked of that checkpoint."""
    values: dict = {
        "storage_url": storage.url,
        "trajectory": TRAJECTORY,
        "fingerprint": "0" * 64,
        "stage": "stage1",
        "step": STEPS,
        "model": MODEL,
        "spec": EvaluationSpec(suites=("copa",), heldout_tokens=2048),
        "sequence_length": 64,
        "heldout": {"prose": (SHARDS, "1" * 64)},
        "tokenizer": "tokenizer.json",
        "attempt": 1,
        "shard_questions": 20,
        **changes,
    }
    return EvaluationJob(**values)
