"""One optimizer step on the whole global batch, and what it leaves behind.

Everything a step computes stays on the device: losses, norms and the decision to skip are tensors, and the host waits for
none of them. It reads them where a row is logged or a milestone written (`StepResult.values`), so between those it may run
ahead of the device. On a CPU there is nothing to run ahead of, and the numbers are the same.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from curriculum.schedule import learning_rate
from jobs.training.batch_check import check_ids
from jobs.training.stability import SkipWindow
from jobs.training.train_job import TrainJob
from ncp_model import NCPModel
from ncp_model.attention_logits import AttentionLogits
from ncp_model.losses import LossDenominators, loss_counts
from ncp_model.metrics import CodebookUsage
from ncp_model.optim import Optimizers, clip_grad_norms
from pipeline.data.loader import DIGEST_MODULUS, MicroBatch, WindowLoader


@dataclass(frozen=True, kw_only=True)
class RankBatch:
    """One rank's share of a global batch, with its own counts: int64 [4] of valid positions, pairs, chunks, and digest."""

    micro_batches: list[MicroBatch]
    counts: Tensor


def load_rank_batch(loader: WindowLoader, job: TrainJob, step: int, rank: int, world_size: int) -> RankBatch:
    """Read, cut and count this rank's share of batch `step` (from 0), in page-locked memory if it goes to a GPU.

    Raises PoisonedBatch for ids outside the vocabulary.
    """
    micro_batches = loader.batch(step, rank, world_size, job.runtime.micro_batch_size)
    check_ids(loader, micro_batches, step, rank, world_size, job.model.vocab_size)
    counts = torch.zeros(4, dtype=torch.int64)
    for batch in micro_batches:
        local = loss_counts(batch.labels, job.model.concept.chunk_size, batch.doc_starts)
        counts[:3] += torch.tensor([int(local.ntp), int(local.ncp), int(local.vq)])
        counts[3] = (int(counts[3]) + batch.digest) % DIGEST_MODULUS
    if job.device == "cuda":
        micro_batches = [_pinned(batch) for batch in micro_batches]
    return RankBatch(micro_batches=micro_batches, counts=counts)


def _pinned(batch: MicroBatch) -> MicroBatch:
    return replace(
        batch,
        input_ids=batch.input_ids.pin_memory(),
        labels=batch.labels.pin_memory(),
        doc_starts=None if batch.doc_starts is None else batch.doc_starts.pin_memory(),
    )


@dataclass(frozen=True, kw_only=True)
class GlobalCounts:
    """What all ranks together know of a step before it is computed."""

    denominators: LossDenominators
    digest: int
    stop: bool
    """Whether some rank wants to stop after this step."""


def exchange_counts(batch: RankBatch, stop_wanted: bool, world_size: int) -> GlobalCounts:
    """Valid positions, chunk pairs and chunks of the whole global batch, and its digest: exact integers, between hosts."""
    own = torch.cat((batch.counts, torch.tensor([int(stop_wanted)])))
    gathered = [torch.zeros_like(own) for _ in range(world_size)]
    dist.all_gather(gathered, own)
    ntp, ncp, vq = (float(sum(int(row[i]) for row in gathered)) for i in range(3))
    return GlobalCounts(
        denominators=LossDenominators(ntp=ntp, ncp=ncp, vq=vq),
        digest=sum(int(row[3]) for row in gathered) % DIGEST_MODULUS,
        stop=any(int(row[4]) for row in gathered),
    )


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """A step that was taken, on the device."""

    step: int
    """Counts from 1."""
    counts: GlobalCounts
    lr: float
    sums: Tensor
    """float64 [4]: NTP, NCP, VQ and z losses summed over the global batch."""
    grad_norms: Tensor
    """float32 [1 + groups], before clipping."""
    skipped: Tensor
    usage: CodebookUsage | None
    attention: Tensor | None
    """float32 [layers], on steps that are logged."""

    @property
    def without_labels(self) -> bool:
        """Whether no token of the whole global batch had a label: there was nothing to learn from, and nothing was done."""
        return not self.counts.denominators.ntp

    def loss_and_norm(self) -> Tensor:
        """float64 [2]: next-token loss and gradient norm; zeros where there was nothing to learn from."""
        if self.without_labels:
            return self.sums.new_zeros(2)
        return torch.stack((self.sums[0] / self.counts.denominators.ntp, self.grad_norms[0].double()))


class StepTaker:
    """The model, its optimizers and the skip rule, stepped together by every rank."""

    def __init__(
        self, job: TrainJob, model: NCPModel, optimizers: Optimizers, stability: SkipWindow, world_size: int
    ):
        self.job, self.model, self.optimizers, self.stability = job, model, optimizers, stability
        self.world_size = world_size
        self.logits = AttentionLogits(model)

    def take(self, step: int, batch: RankBatch, counts: GlobalCounts, *, logged: bool) -> StepResult:
        """Optimizer step `step` (from 0) on the whole global batch; `logged` ones are looked at more closely.

        A global batch without one label (a filter masked all of it) is passed over, by all ranks alike: weights, moments and
        the skip rule's window stay as they are, and the step counts.
        """
        job, concept = self.job, self.job.model.concept
        if not counts.denominators.ntp:
            return self._passed_over(step, counts)
        sums = torch.zeros(4, dtype=torch.float64, device=job.device)
        usage = (
            CodebookUsage(concept.segments, concept.entries, job.device)
            if logged and concept.enabled
            else None
        )
        attention = (
            self._compiled_attention(batch.micro_batches[0]) if logged and job.runtime.compile else None
        )
        self.optimizers.zero_grad()
        for number, micro_batch in enumerate(batch.micro_batches):
            watched = logged and number == 0 and not job.runtime.compile
            with self.logits if watched else contextlib.nullcontext():
                out = self.model(**self._inputs(micro_batch), denominators=counts.denominators)
            if watched:
                attention = self.logits.bounds()
            # FSDP2 averages gradients over ranks; the loss is already divided by the global denominators.
            (out.loss * self.world_size).backward()
            sums += torch.stack([term.detach().double() for term in (out.ntp, out.ncp, out.vq, out.z)])
            if usage is not None:
                usage.update(out)
        dist.all_reduce(sums)
        if usage is not None:
            usage.all_reduce()
        if attention is not None:
            dist.all_reduce(attention, op=dist.ReduceOp.MAX)
        grad_norms = clip_grad_norms(self.model, job.stage.optimizer.clip_norm, self.optimizers.groups)
        lr = learning_rate(job.stage, step)
        skipped = self.stability.should_skip(sums[0] / counts.denominators.ntp, grad_norms[0])
        self.optimizers.step(lr, skipped)
        return StepResult(
            step=step + 1,
            counts=counts,
            lr=lr,
            sums=sums,
            grad_norms=grad_norms,
            skipped=skipped,
            usage=usage,
            attention=attention,
        )

    def _passed_over(self, step: int, counts: GlobalCounts) -> StepResult:
        device = self.job.device
        return StepResult(
            step=step + 1,
            counts=counts,
            lr=learning_rate(self.job.stage, step),
            sums=torch.zeros(4, dtype=torch.float64, device=device),
            grad_norms=torch.zeros(1 + len(self.optimizers.groups), device=device),
            skipped=torch.ones((), dtype=torch.bool, device=device),
            usage=None,
            attention=None,
        )

    def values(self, result: StepResult) -> dict[str, Any]:
        """The deterministic columns of a logged step. Waits for the device.

        Losses are None where nothing was valid: all four of a batch without labels, NCP and VQ of one without whole chunks.
        """
        tokens = result.step * self.job.stage.global_batch_tokens
        ntp, ncp, vq, z = result.sums.tolist()
        total, *groups = result.grad_norms.tolist()
        den = result.counts.denominators
        bounds = [] if result.attention is None else result.attention.tolist()
        return {
            "tokens_in_stage": tokens,
            "tokens_total": self.job.tokens_before + tokens,
            "ntp": ntp / den.ntp if den.ntp else None,
            "ncp": self._concept_loss(ncp, float(den.ncp)),
            "vq": self._concept_loss(vq, float(den.vq)),
            "z": z / den.ntp if den.ntp else None,
            "lr": result.lr,
            "grad_norm": None if result.without_labels else total,
            **{
                f"grad_norm.{name}": None if result.without_labels else norm
                for name, norm in zip(self.optimizers.groups, groups, strict=True)
            },
            "skipped": int(result.skipped),
            "skips": self.stability.skips,
            "batch_digest": f"{result.counts.digest:016x}",
            **(result.usage.compute() if result.usage is not None else {}),
            **{
                f"attention_logit.{name}": bound
                for name, bound in zip(self.logits.names, bounds, strict=False)
            },
        }

    def _concept_loss(self, total: float, count: float) -> float | None:
        """The mean, None where a model with concepts saw nothing to count, and zero for a model without them."""
        if not self.job.model.concept.enabled:
            return 0.0
        return total / count if count else None

    def _inputs(self, batch: MicroBatch) -> dict[str, Tensor | None]:
        device = self.job.device
        return {
            name: None if tensor is None else tensor.to(device, non_blocking=True)
            for name, tensor in (
                ("input_ids", batch.input_ids),
                ("labels", batch.labels),
                ("doc_starts", batch.doc_starts),
            )
        }

    @torch.no_grad()
    def _compiled_attention(self, batch: MicroBatch) -> Tensor:
        """Compiled layers do not call hooks: one window is run once more, eagerly, for the logits' bound alone."""
        window = {
            name: None if tensor is None else tensor[:1] for name, tensor in self._inputs(batch).items()
        }
        with torch.compiler.set_stance("force_eager"), self.logits:
            self.model(**window)
        return self.logits.bounds()
