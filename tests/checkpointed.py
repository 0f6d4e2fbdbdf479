"""A complete checkpoint of a tiny model, trained a few steps in this process: for tests of what comes after training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch.distributed as dist

from curriculum.model_spec import ModelSpec
from curriculum.optimizer_spec import OptimizerSpec
from curriculum.schema import EvaluationSpec, PrecisionSpec, StageSpec
from jobs.evaluation_job import EvaluationJob
from jobs.train_job import TrainJob
from jobs.train_loop import train
from pipeline.storage import Storage
from tests.staged import stage_prose

STEPS = 3
SHARDS = "steps/shards-prose"
TRAJECTORY = "steps/stage1-0123456789ab"
MODEL = replace(ModelSpec.preset("tiny"), hidden_size=32, intermediate_size=64, max_sequence_length=64)


def make_checkpoint(folder: Path) -> Storage:
    """A storage with staged prose, its tokenizer, and TRAJECTORY at STEPS."""
    storage = Storage(str(folder / "store"))
    tokenizer = stage_prose(storage, SHARDS)
    storage.write_bytes("tokenizer.json", tokenizer.data)
    stage = StageSpec(
        mixture={"prose": 1.0},
        tokens=STEPS * 512,
        sequence_length=64,
        global_batch_tokens=512,
        order_block=16,
        optimizer=OptimizerSpec(lr=3e-3),
    )
    job = TrainJob(
        storage_url=storage.url,
        step_key=TRAJECTORY,
        attempt=0,
        run="test",
        stage_name="stage1",
        stage=stage,
        model=MODEL,
        precision=PrecisionSpec(),
        shards={"prose": SHARDS},
        parent=None,
        tokens_before=0,
        stop_step=STEPS,
        micro_batch_size=2,
        checkpoint_every_steps=STEPS,
        log_every_steps=1,
    )
    dist.init_process_group("gloo", init_method=f"file://{folder / 'group'}", rank=0, world_size=1)
    try:
        train(job)
    finally:
        dist.destroy_process_group()
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
