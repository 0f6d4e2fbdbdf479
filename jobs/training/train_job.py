"""What a training worker is told: plain frozen data that travels to every rank. No torch, no Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from curriculum.model_spec import ModelSpec
from curriculum.schema import PrecisionSpec, RuntimeSpec, StageSpec
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
    runtime: RuntimeSpec
    initial: InitialCheckpoint | None = None
    """Instead of a parent: a checkpoint from outside the run."""
    compile_backend: str = "inductor"

    @property
    def device(self) -> str:
        return "cuda" if self.runtime.gpus_per_worker else "cpu"

    @property
    def first_step(self) -> int:
        """Where the stage starts: 0, or where what it starts from stood, if it goes on there (`init.load: full`)."""
        if self.stage.init.load != "full":
            return 0
        return self.initial.step if self.initial else self.parent.step if self.parent else 0
