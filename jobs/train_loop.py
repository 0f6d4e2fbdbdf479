"""The loop every training worker runs: exact, resumable, the same batches at any world size.

    mesh -> model on meta -> fully_shard -> materialise -> newest milestone, or parent stage, or seed
    for each step: batch -> global denominators -> micro-batches -> clip -> LR -> step -> metrics -> milestone

Whatever is random comes from the step number and the stage's seed, so a run that was killed and resumed takes the very
same steps. Denominators are summed over ranks before the forward pass: uneven micro-batches and world sizes that do
not divide the batch give the gradient of the whole global batch. The loop is a no-op when it is already at its stop.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from curriculum.schedule import learning_rate
from jobs.alerts import AlertWatch
from jobs.batch_check import check_ids
from jobs.load_initial import load_initial
from jobs.metric_log import MetricRow, MetricWriter
from jobs.milestone_writer import CheckpointFailed, MilestoneWriter
from jobs.milestones import load_milestone
from jobs.preemption import PreemptionNotice
from jobs.stability import SkipWindow, UnstableTraining
from jobs.stop import attempt_stop_requested, request_preemption
from jobs.tracking import NoTracker, open_tracker
from jobs.train_job import TrainJob
from jobs.watchdog import Watchdog
from ncp_model import build_model
from ncp_model.init import initialize_codebooks, initialize_weights
from ncp_model.losses import LossDenominators, loss_counts
from ncp_model.metrics import CodebookUsage
from ncp_model.optim import Optimizers, build_optimizers, clip_grad_norm
from ncp_model.parallel import shard_model
from pipeline.dag.lease import LeaseBook, Superseded
from pipeline.dag.store import StepStore
from pipeline.data.instance_filter import RepetitionFilter
from pipeline.data.loader import MicroBatch, WindowLoader
from pipeline.storage import Storage

CODEBOOK_WINDOWS = 16
"""Windows of the global order, from its start, whose chunks initialise the codebooks."""
PROGRESS_SECONDS = 1.0
DIGEST_MODULUS = 2**63
FINISH_SECONDS = 60.0
"""After an error: how long the milestone in flight may still take to become complete."""


class NonFiniteLoss(ValueError):
    """The loss is not a number; nothing after the last milestone was kept."""


ALERTED: dict[type[BaseException], str] = {
    NonFiniteLoss: "non_finite_loss",
    UnstableTraining: "unstable",
    CheckpointFailed: "checkpoint_failed",
}
"""Errors that end an attempt and that a person should hear of, by the kind of their alert."""


def train(job: TrainJob) -> None:
    """Bring the trajectory to `job.stop_step`. Runs in every worker inside a process group."""
    torch.set_num_threads(job.threads_per_worker)
    storage = Storage(job.storage_url)
    loader = WindowLoader(
        storage=storage,
        outputs=job.shards,
        weights=job.stage.mixture,
        block=job.stage.order_block,
        seed=job.stage.seed,
        sequence_length=job.stage.sequence_length,
        global_batch_tokens=job.stage.global_batch_tokens,
        check=dist.get_rank() == 0,
        cache_dir=job.shard_cache_dir or None,
        cache_bytes=job.shard_cache_bytes,
        repetition_filter=RepetitionFilter() if job.stage.repetition_filter else None,
        packing=job.stage.packing,
    )
    model, optimizers = _build(job)
    milestones = MilestoneWriter(storage, job, model, optimizers)
    start, stability = _load_state(storage, job, loader, model, optimizers, milestones)
    _Trainer(job, storage, loader, model, optimizers, stability, milestones).run(start)


def _build(job: TrainJob) -> tuple[torch.nn.Module, Optimizers]:
    mesh = init_device_mesh(job.device, (dist.get_world_size(),))
    model = build_model(job.model, device="meta")
    shard_model(
        model,
        mesh,
        param_dtype=getattr(torch, job.precision.param),
        reduce_dtype=getattr(torch, job.precision.reduce),
    )
    model.to_empty(device=job.device)
    return model, build_optimizers(model, job.stage.optimizer)


def _load_state(
    storage: Storage,
    job: TrainJob,
    loader: WindowLoader,
    model: torch.nn.Module,
    optimizers: Optimizers,
    milestones: MilestoneWriter,
) -> tuple[int, SkipWindow]:
    """The state to start from: this trajectory's newest milestone, the parent stage's final one, or the seed.

    Returns the step it stands at, and the window of the skip rule (a stage starts with an empty one).
    """
    newest = [
        StepStore(storage, job.step_key).newest_milestone(job.stop_step) if dist.get_rank() == 0 else None
    ]
    dist.broadcast_object_list(newest, src=0)
    if newest[0] is not None:
        marker = load_milestone(storage, job.step_key, newest[0], model, optimizers)
        return newest[0], SkipWindow(job.stage.stability, marker["stability"])
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
        initialize_codebooks(model, loader.fixed_batch(CODEBOOK_WINDOWS))
    stability = SkipWindow(job.stage.stability)
    milestones.save(0, stability.state())
    return 0, stability


def _window(job: TrainJob, marker: dict[str, Any]) -> SkipWindow:
    """The skip rule's window at a stage's start: empty, unless the stage goes on where its parent stood."""
    return SkipWindow(job.stage.stability, marker["stability"] if job.stage.init.load == "full" else None)


class _Trainer:
    """The state of one restart of the loop: what is neither in the job nor in a milestone."""

    def __init__(
        self,
        job: TrainJob,
        storage: Storage,
        loader: WindowLoader,
        model: torch.nn.Module,
        optimizers: Optimizers,
        stability: SkipWindow,
        milestones: MilestoneWriter,
    ):
        self.stability = stability
        self.milestones = milestones
        self.checkpoint_stall = (
            0.0  # seconds that the loop stood still for the last milestone, until a row tells
        )
        self.stop_wanted = False  # by rank 0's look at storage
        self.stopping = False  # by all ranks, at the same step
        self.job, self.storage, self.loader = job, storage, loader
        self.model, self.optimizers = model, optimizers
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.store = StepStore(storage, job.step_key)
        self.metrics = MetricWriter(storage, job.step_key, job.attempt) if self.rank == 0 else None
        self.tracker = open_tracker(job) if self.rank == 0 else NoTracker()
        self.alerts = AlertWatch(
            storage,
            job.step_key,
            job.attempt,
            job.run,
            codebook_entries=job.model.concept.entries if job.model.concept.enabled else 0,
            dead_codebook_share=job.alert_dead_codebook_share,
        )
        self.taken = 0
        self.reported_at = 0.0
        self.started_at = time.monotonic()
        self.first_step = 0

    def run(self, start: int) -> None:
        self.first_step = start
        self.model.train()
        job = self.job
        try:
            with (
                PreemptionNotice(self._preempted),
                Watchdog(
                    self.storage, job.step_key, job.attempt, self.rank, job.hang_timeout_seconds, job.run
                ) as watchdog,
            ):
                self._run(watchdog, start)
        except tuple(ALERTED) as error:
            if self.rank == 0:
                self.alerts.fail(ALERTED[type(error)], error, self.taken + 1)
            raise
        finally:
            self.milestones.finish(FINISH_SECONDS)
            self.tracker.close()

    def _preempted(self, reason: str) -> None:
        request_preemption(
            self.storage, self.job.step_key, self.job.attempt, f"{reason} of the worker of rank {self.rank}"
        )

    def _run(self, watchdog: Watchdog, start: int) -> None:
        for step in range(start, self.job.stop_step):
            begun = time.monotonic()
            row = self._step(step)
            row.timing["seconds"] = time.monotonic() - begun
            row.timing["checkpoint_stall"], self.checkpoint_stall = self.checkpoint_stall, 0.0
            self._record(row)
            self.taken = step + 1
            self.milestones.check()
            watchdog.step_taken()
            taken = step + 1
            if self._milestone_due(taken):
                begun = time.monotonic()
                if self.metrics is not None:
                    self.metrics.close_segment()
                self.milestones.save(taken, self.stability.state())
                self.checkpoint_stall = time.monotonic() - begun
            if self.stopping:
                break
        self.milestones.wait()

    def _milestone_due(self, taken: int) -> bool:
        permanent = self.job.permanent_checkpoint_every_steps
        return (
            self.stopping
            or taken == self.job.stop_step
            or taken % self.job.checkpoint_every_steps == 0
            or (permanent > 0 and taken % permanent == 0)
        )

    def _step(self, step: int) -> MetricRow:
        """Optimizer step `step` (0-based) on the whole global batch."""
        job = self.job
        begun = time.monotonic()
        batches = self.loader.batch(step, self.rank, self.world_size, job.micro_batch_size)
        waited = time.monotonic() - begun
        check_ids(self.loader, batches, step, self.rank, self.world_size, job.model.vocab_size)
        denominators, digest = self._global_counts(batches)
        sums = torch.zeros(4, dtype=torch.float64, device=job.device)
        concept = job.model.concept
        usage = CodebookUsage(concept.segments, concept.entries, job.device) if concept.enabled else None
        self.optimizers.zero_grad()
        for batch in batches:
            out = self.model(
                batch.input_ids.to(job.device),
                labels=batch.labels.to(job.device),
                doc_starts=None if batch.doc_starts is None else batch.doc_starts.to(job.device),
                denominators=denominators,
            )
            # FSDP2 averages gradients over ranks; the loss is already divided by the global denominators.
            (out.loss * self.world_size).backward()
            sums += torch.stack([term.detach().double() for term in (out.ntp, out.ncp, out.vq, out.z)])
            if usage is not None:
                usage.update(out)
        dist.all_reduce(sums)
        if usage is not None:
            usage.all_reduce()
        ntp, ncp, vq, z = sums.tolist()
        grad_norm = float(clip_grad_norm(self.model, job.stage.optimizer.grad_clip))
        if not (math.isfinite(ntp) and math.isfinite(grad_norm)):
            raise NonFiniteLoss(
                f"{job.stage_name} step {step + 1}: loss {ntp / denominators.ntp}, gradient norm {grad_norm}; "
                f"lower optimizer.lr (now {job.stage.optimizer.lr}) or raise schedule.warmup_steps"
            )
        lr = learning_rate(job.stage, step)
        skipped = self.stability.should_skip(ntp / denominators.ntp, grad_norm)
        if not skipped:
            self.optimizers.step(lr)
        values = {
            "tokens_in_stage": (step + 1) * job.stage.global_batch_tokens,
            "tokens_total": job.tokens_before + (step + 1) * job.stage.global_batch_tokens,
            "ntp": ntp / denominators.ntp,
            "ncp": ncp / max(denominators.ncp, 1),
            "vq": vq / max(denominators.vq, 1),
            "z": z / denominators.ntp,
            "lr": lr,
            "grad_norm": grad_norm,
            "skipped": int(skipped),
            "batch_digest": f"{digest:016x}",
            **(usage.compute() if usage is not None else {}),
        }
        return MetricRow(step=step + 1, values=values, timing={"data_wait": waited})

    def _global_counts(self, batches: list[MicroBatch]) -> tuple[LossDenominators, int]:
        """Valid positions, chunk pairs and chunks of the whole global batch, and its digest: exact integers.

        The same exchange tells every rank whether to stop after this step.
        """
        counts = torch.zeros(5, dtype=torch.int64)
        for batch in batches:
            local = loss_counts(batch.labels, self.job.model.concept.chunk_size, batch.doc_starts)
            counts[:3] += torch.tensor([int(local.ntp), int(local.ncp), int(local.vq)])
            counts[3] = (int(counts[3]) + batch.digest) % DIGEST_MODULUS
        counts[4] = self.stop_wanted
        gathered = [torch.zeros_like(counts) for _ in range(self.world_size)]
        dist.all_gather(gathered, counts)
        self.stopping = any(int(row[4]) for row in gathered)
        ntp, ncp, vq = (float(sum(int(row[i]) for row in gathered)) for i in range(3))
        return LossDenominators(ntp=ntp, ncp=ncp, vq=vq), sum(
            int(row[3]) for row in gathered
        ) % DIGEST_MODULUS

    def _record(self, row: MetricRow) -> None:
        if self.metrics is None:
            return
        if row.step % self.job.log_every_steps == 0 or row.step == self.job.stop_step:
            self.metrics.add(row)
            self.tracker.log(row)
            self.alerts.observe(row)
        if time.monotonic() - self.reported_at < PROGRESS_SECONDS and row.step != self.job.stop_step:
            return
        self.reported_at = time.monotonic()
        if LeaseBook(self.storage, self.job.step_key).highest() != self.job.attempt:
            raise Superseded(
                f"attempt {self.job.attempt} of {self.job.step_key}: superseded at step {row.step}"
            )
        self.stop_wanted = attempt_stop_requested(self.storage, self.job.step_key, self.job.attempt)
        taken = row.step - self.first_step
        rate = taken * self.job.stage.global_batch_tokens / max(1e-9, time.monotonic() - self.started_at)
        remaining = (self.job.stop_step - row.step) * self.job.stage.global_batch_tokens
        self.store.write_progress(
            self.job.attempt,
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
            },
        )
