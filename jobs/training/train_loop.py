"""The loop every training worker runs: exact, resumable, the same batches at any world size.

    mesh -> model on meta -> fully_shard -> materialise -> newest milestone, or parent stage, or seed
    for each step: batch (read ahead) -> global denominators -> micro-batches -> clip -> LR -> step -> row -> milestone

Whatever is random comes from the step number and the stage's seed, so a run that was killed and resumed takes the very
same steps. Denominators are summed over ranks before the forward pass: uneven micro-batches and world sizes that do
not divide the batch give the gradient of the whole global batch. The loop is a no-op when it is already at its stop.

The host waits for the device where a row is logged (`runtime.log_every_steps`) and where a milestone is written, nowhere
else: a loss that is not a number is noticed there, its step having been skipped by then like any outlier.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from curriculum.errors import InputError
from curriculum.tokens import evaluated_steps
from jobs.runs.alerts import AlertWatch
from jobs.runs.checkpoint_files import DamagedMilestone
from jobs.runs.metric_log import MetricRow, MetricWriter
from jobs.runs.set_aside import set_aside
from jobs.runs.stop import mark_attempt_failed, request_preemption
from jobs.training.attempt_watch import AttemptWatch
from jobs.training.load_initial import load_initial
from jobs.training.milestone_writer import CheckpointFailed, MilestoneWriter
from jobs.training.milestones import load_milestone
from jobs.training.preemption import PreemptionNotice
from jobs.training.prefetch import Prefetcher
from jobs.training.stability import SkipWindow, UnstableTraining
from jobs.training.step_clock import StepClock
from jobs.training.tracking import NoTracker, open_tracker
from jobs.training.train_job import TrainJob
from jobs.training.train_step import RankBatch, StepResult, StepTaker, exchange_counts, load_rank_batch
from jobs.training.watchdog import Watchdog
from ncp_model import NCPModel, build_model
from ncp_model.flops import flops_per_token
from ncp_model.init import initialize_codebooks, initialize_weights
from ncp_model.optim import Optimizers, build_optimizers
from ncp_model.parallel import checkpoint_blocks, compile_layers, shard_model
from pipeline.answers import patience
from pipeline.dag.lease import Superseded
from pipeline.dag.store import StepStore
from pipeline.data.instance_filter import RepetitionFilter
from pipeline.data.loader import WindowLoader
from pipeline.storage import Storage

CODEBOOK_WINDOWS = 16
"""Windows of the global order, from its start, whose chunks initialise the codebooks."""
MARK_SECONDS = 10.0
"""How long an attempt that ends by an error waits for storage to say so."""
FINISH_SECONDS = 60.0
"""After an error: how long the milestone in flight may still take to become complete."""


class NonFiniteLoss(InputError):
    """The loss is not a number; nothing after the last milestone was kept."""


ALERTED: dict[type[BaseException], str] = {
    NonFiniteLoss: "non_finite_loss",
    UnstableTraining: "unstable",
    CheckpointFailed: "checkpoint_failed",
}
"""Errors that end an attempt and that a person should hear of, by the kind of their alert."""


def train(job: TrainJob) -> None:
    """Bring the trajectory to `job.stop_step`. Runs in every worker inside a process group."""
    torch.set_num_threads(job.runtime.threads_per_worker)
    storage = Storage(job.storage_url)
    with PreemptionNotice(lambda reason: _preempted(storage, job, reason)):
        try:
            loader = build_loader(storage, job)
            model, optimizers = build_sharded(job)
            milestones = MilestoneWriter(storage, job, model, optimizers)
            start, stability = _load_state(storage, job, loader, model, optimizers, milestones)
            if job.runtime.compile:
                compile_layers(model, job.compile_backend)
            trainer = _Trainer(job, storage, loader, model, optimizers, stability, milestones)
        except BaseException:
            with contextlib.suppress(OSError):
                mark_attempt_failed(storage, job.step_key, job.attempt)
            raise
        trainer.run(start)


def _preempted(storage: Storage, job: TrainJob, reason: str) -> None:
    who = f"worker of rank {dist.get_rank()}: {reason}"
    request_preemption(storage, job.step_key, job.attempt, who)


def build_loader(storage: Storage, job: TrainJob) -> WindowLoader:
    """The stage's batches; rank 0 checks the shards for all."""
    return WindowLoader(
        storage=storage,
        outputs=job.shards,
        weights=job.stage.mixture,
        block=job.stage.order_block,
        seed=job.stage.seed,
        sequence_length=job.stage.sequence_length,
        global_batch_tokens=job.stage.global_batch_tokens,
        check=dist.get_rank() == 0,
        cache_dir=job.runtime.shard_cache_dir or None,
        cache_bytes=job.runtime.shard_cache_bytes,
        repetition_filter=RepetitionFilter() if job.stage.repetition_filter else None,
        packing=job.stage.packing,
    )


def build_sharded(job: TrainJob) -> tuple[NCPModel, Optimizers]:
    """The model, sharded before it holds anything, so that no rank ever holds all of it; and its optimizers."""
    model = build_model(job.model, device="meta")
    shard_model(
        model,
        training_mesh(job),
        param_dtype=getattr(torch, job.precision.param),
        reduce_dtype=getattr(torch, job.precision.reduce),
    )
    if job.runtime.activation_checkpointing:
        checkpoint_blocks(model)
    model.to_empty(device=job.device)
    return model, build_optimizers(model, job.stage.optimizer)


def training_mesh(job: TrainJob) -> DeviceMesh:
    """One dimension over all ranks, or replicate x shard. Raises ValueError for ranks that do not fill it."""
    ranks, size = dist.get_world_size(), job.runtime.shard_size
    if size in (0, ranks):
        return init_device_mesh(job.device, (ranks,))
    if ranks % size:
        raise ValueError(
            f"runtime.shard_size: {size} does not divide the {ranks} workers; choose one that does, or 0"
        )
    return init_device_mesh(job.device, (ranks // size, size), mesh_dim_names=("replicate", "shard"))


def _load_state(
    storage: Storage,
    job: TrainJob,
    loader: WindowLoader,
    model: NCPModel,
    optimizers: Optimizers,
    milestones: MilestoneWriter,
) -> tuple[int, SkipWindow]:
    """The state to start from: this trajectory's newest milestone, the parent stage's final one, or the seed.

    Returns the step it stands at, and the window of the skip rule (a stage starts with an empty one).
    """
    while (newest := _newest(storage, job)) is not None:
        try:
            marker = load_milestone(storage, job.step_key, newest, model, optimizers)
        except DamagedMilestone as damage:  # on all ranks alike
            if dist.get_rank() == 0:
                batch = job.stage.global_batch_tokens
                print(set_aside(storage, damage, batch_tokens=batch, attempt=job.attempt, run=job.run))
            continue
        return newest, SkipWindow(job.stage.stability, marker["stability"], job.device)
    if job.parent is not None:
        carried = None if job.parent.load == "weights" else optimizers
        marker = load_milestone(storage, job.parent.step_key, job.parent.step, model, carried)
        return job.first_step, _window(job, marker)
    if job.initial is not None:
        window = _window(job, load_initial(job.initial, job.stage.init.load, job.model, model, optimizers))
        milestones.save(job.first_step, window.state())
        return job.first_step, window
    initialize_weights(model, job.model, job.stage.seed)
    if job.model.concept.enabled and job.model.concept.codebook_init == "data":
        initialize_codebooks(model, loader.fixed_batch(CODEBOOK_WINDOWS).to(job.device))
    stability = SkipWindow(job.stage.stability, device=job.device)
    milestones.save(0, stability.state())
    return 0, stability


def _newest(storage: Storage, job: TrainJob) -> int | None:
    """The trajectory's newest milestone by its markers, as rank 0 finds it."""
    newest = [
        StepStore(storage, job.step_key).newest_milestone(job.stop_step) if dist.get_rank() == 0 else None
    ]
    dist.broadcast_object_list(newest, src=0)
    return newest[0]


def _window(job: TrainJob, marker: dict[str, Any]) -> SkipWindow:
    """The skip rule's window at a stage's start: empty, unless the stage goes on where its parent stood."""
    carried = marker["stability"] if job.stage.init.load == "full" else None
    return SkipWindow(job.stage.stability, carried, job.device)


class _Trainer:
    """The state of one restart of the loop: what is neither in the job nor in a milestone."""

    def __init__(
        self,
        job: TrainJob,
        storage: Storage,
        loader: WindowLoader,
        model: NCPModel,
        optimizers: Optimizers,
        stability: SkipWindow,
        milestones: MilestoneWriter,
    ):
        self.job, self.storage = job, storage
        self.model, self.stability, self.milestones = model, stability, milestones
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.taker = StepTaker(job, model, optimizers, stability, self.world_size)
        self.batches = Prefetcher(self._load_batch(loader), stop=job.stop_step)
        self.metrics = MetricWriter(storage, job.step_key, job.attempt) if self.rank == 0 else None
        self.watch = AttemptWatch(storage, job.step_key, job.attempt) if self.rank == 0 else None
        self.tracker = open_tracker(job) if self.rank == 0 else NoTracker()
        self.alerts = AlertWatch(
            storage,
            job.step_key,
            job.attempt,
            job.run,
            codebook_entries=job.model.concept.entries if job.model.concept.enabled else 0,
            dead_codebook_share=job.runtime.alert_dead_codebook_share,
        )
        self.taken = 0
        self.clock = StepClock(
            tokens_per_step=job.stage.global_batch_tokens,
            flops_per_token=flops_per_token(job.model, job.stage.sequence_length).total,
            peak_flops=job.runtime.peak_flops_per_worker * self.world_size,
        )
        self.unchecked: list[StepResult] = []  # steps whose numbers the host has not seen
        self.stopping = False  # by all ranks, at the same step
        self.started_at = time.monotonic()
        self.first_step = 0

    def _load_batch(self, loader: WindowLoader) -> Callable[[int], RankBatch]:
        return lambda step: load_rank_batch(loader, self.job, step, self.rank, self.world_size)

    def run(self, start: int) -> None:
        self.first_step = start
        self.model.train()
        job = self.job
        try:
            with Watchdog(
                self.storage, job.step_key, job.attempt, self.rank, job.runtime.hang_timeout_seconds, job.run
            ) as watchdog:
                self._run(watchdog, start)
        except BaseException as error:
            # Storage may be what fails; `error` is what matters.
            with contextlib.suppress(Exception), patience(MARK_SECONDS, MARK_SECONDS):
                mark_attempt_failed(self.storage, job.step_key, job.attempt)
            if self.rank == 0 and isinstance(error, tuple(ALERTED)):
                self.alerts.fail(ALERTED[type(error)], error, self.taken + 1)
            raise
        finally:
            self.milestones.finish(FINISH_SECONDS)
            self.batches.close()
            self.tracker.close()
            if self.watch is not None:
                self.watch.close()

    def _run(self, watchdog: Watchdog, start: int) -> None:
        for step in range(start, self.job.stop_step):
            taken = step + 1
            row = self._step(step)
            if row is not None:
                self._record(row)
            self._heed_storage(taken)
            self.taken = taken
            self.milestones.check()
            watchdog.step_taken()
            if self._milestone_due(taken):
                begun = time.monotonic()
                self._check_steps()
                if self.metrics is not None:
                    self.metrics.close_segment()
                self.milestones.save(taken, self.stability.state())
                self.clock.stalled(time.monotonic() - begun)
                watchdog.step_taken()
            if self.stopping:
                break
        self.milestones.wait()

    def _milestone_due(self, taken: int) -> bool:
        permanent = self.job.runtime.permanent_checkpoint_every_steps
        return (
            self.stopping
            or taken == self.job.stop_step
            or taken % self.job.runtime.checkpoint_every_steps == 0
            or (permanent > 0 and taken % permanent == 0)
            or taken in evaluated_steps(self.job.stage)
        )

    def _step(self, step: int) -> MetricRow | None:
        """Optimizer step `step` (from 0), and its row if it is one that is logged."""
        batch = self.batches.take(step)
        stop_wanted = self.watch is not None and self.watch.stop_wanted
        counts = exchange_counts(batch, stop_wanted, self.world_size)
        self.stopping = counts.stop
        taken = step + 1
        logged = taken % self.job.runtime.log_every_steps == 0 or taken == self.job.stop_step
        result = self.taker.take(step, batch, counts, logged=logged)
        self.unchecked.append(result)
        self.clock.step_taken()
        if not logged:
            return None
        self._check_steps()
        values = self.taker.values(result)
        timing = self.clock.read(self.batches.waited)
        self.batches.waited = 0.0
        return MetricRow(step=taken, values=values, timing=timing)

    def _check_steps(self) -> None:
        """Raise NonFiniteLoss or UnstableTraining for a step since the last look. Waits for the device."""
        results, self.unchecked = self.unchecked, []
        if not results:
            return
        for result, (loss, norm) in zip(
            results, torch.stack([r.loss_and_norm() for r in results]).tolist(), strict=True
        ):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                raise NonFiniteLoss(
                    f"{self.job.stage_name} step {result.step}: loss {loss}, gradient norm {norm}; "
                    f"lower optimizer.lr (now {self.job.stage.optimizer.lr}) or raise schedule.warmup_steps"
                )
        self.stability.check()

    def _record(self, row: MetricRow) -> None:
        """Rank 0: the row to storage and the tracker, and the progress that `ncp status` shows."""
        if self.metrics is None or self.watch is None:
            return
        self.metrics.add(row)
        self.tracker.log(row)
        self.alerts.observe(row)
        taken = row.step - self.first_step
        rate = taken * self.job.stage.global_batch_tokens / max(1e-9, time.monotonic() - self.started_at)
        remaining = (self.job.stop_step - row.step) * self.job.stage.global_batch_tokens
        self.watch.progress(
            {
                "unit": "tokens",
                "done": row.values["tokens_in_stage"],
                "total": self.job.stop_step * self.job.stage.global_batch_tokens,
                "step": row.step,
                "steps": self.job.stop_step,
                "loss": row.values["ntp"],
                "ncp": row.values["ncp"],
                "vq": row.values["vq"],
                "lr": row.values["lr"],
                "rate": rate,
                "eta_seconds": remaining / rate,
                "resumed_from": self.first_step,
                "workers": self.world_size,
            }
        )

    def _heed_storage(self, taken: int) -> None:
        """Rank 0: raise Superseded once another attempt has taken the trajectory over."""
        if self.watch is not None and self.watch.superseded:
            raise Superseded(f"attempt {self.job.attempt} of {self.job.step_key}: superseded at step {taken}")
