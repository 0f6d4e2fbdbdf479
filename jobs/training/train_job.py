"""What a training worker is told: plain frozen data that travels to every rank. No torch, no Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from curriculum.model_spec import ModelSpec
from curriculum.schema import PrecisionSpec, StageSpec
from jobs.runs.initial_checkpoint import InitialCheckpoint


@dataclass(frozen=True, kw_only=True)
class Parent:
    """The milestone a stage starts from."""

    stage: str
    step_key: str
    step: int
    load: str


@dataclass(frozen=True, kw_only=True)
class TrainJob:
    """One attempt at bringing one stage's trajectory to `stop_step`."""

    storage_url: str
    step_key: str
    attempt: int
    run: str
    stage_name: str
    stage: StageSpec
    model: ModelSpec
    precision: PrecisionSpec
    shards: Mapping[str, str]
    """Source -> storage key of its shards' output."""
    parent: Parent | None
    tokens_before: int
    """Tokens of the stages this one descends from."""
    stop_step: int
    micro_batch_size: int
    checkpoint_every_steps: int
    log_every_steps: int
    permanent_checkpoint_every_steps: int = 0
    keep_checkpoints: int = 3
    async_checkpoints: bool = True
    threads_per_worker: int = 1
    hang_timeout_seconds: float = 0.0
    alert_dead_codebook_share: float = 1.0
    wandb_project: str = ""
    shard_cache_dir: str = ""
    shard_cache_bytes: int = 0
    initial: InitialCheckpoint | None = None
    """Instead of a parent: a checkpoint from outside the run."""
    shard_size: int = 0
    activation_checkpointing: bool = False
    compile: bool = False
    compile_backend: str = "inductor"
    peak_flops_per_worker: float = 0.0
    device: str = "cpu"

    @property
    def first_step(self) -> int:
        """Where the stage starts: 0, or where what it starts from stood, if it goes on there (`init.load: full`)."""
        if self.stage.init.load != "full":
            return 0
        return self.initial.step if self.initial else self.parent.step if self.parent else 0
