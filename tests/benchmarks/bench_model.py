"""Tokens per second of the full NCP network against a vanilla stack of equal FLOPs per token.

    python -m tests.benchmarks.bench_model                       # hidden sizes 256, 512, 1024, T = 1024
    python -m tests.benchmarks.bench_model --widths 256 --rounds 3 --compile

The models run in turn, micro-batch by micro-batch, in one process, so that other load hits all alike. Forward + backward
of a micro-batch and the optimizer's part (clipping, Muon, AdamW) are timed apart; tokens/s are those of a step of
`--accumulate` micro-batches, from the medians. Memory is what one forward pass keeps for its backward (on a GPU: the peak
of a whole step beyond weights and optimizer state).
"""

from __future__ import annotations

import argparse
import dataclasses
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from curriculum.model_spec import ConceptSpec, CrcSpec, IrcSpec, ModelSpec, NcpSpec, VqSpec
from curriculum.optimizer_spec import OptimizerSpec
from ncp_model.flops import flops_per_token, total_parameters
from ncp_model.model import NCPModel, build_model
from ncp_model.optim import Optimizers, build_optimizers, clip_grad_norm

LAYERS = (8, 4, 8)  # encoder, concept, decoder: the published 1B overhead study
VOCAB_SIZE = 8192
NO_ROUTES = {"irc": IrcSpec(enabled=False), "crc": CrcSpec(enabled=False)}


def ncp_spec(width: int, length: int) -> ModelSpec:
    """The full network at a width, in the proportions of the 8.94B model."""
    return ModelSpec(
        hidden_size=width,
        intermediate_size=-(-width * 43 // 16) // 32 * 32,
        num_heads=max(width // 64, 1),
        encoder_layers=LAYERS[0],
        concept_layers=LAYERS[1],
        decoder_layers=LAYERS[2],
        vocab_size=VOCAB_SIZE,
        max_sequence_length=length,
        window=length // 2,
        concept=ConceptSpec(segments=max(width // 32, 1), entries=64),
    )


def vanilla_spec(ncp: ModelSpec, length: int) -> ModelSpec:
    """A vanilla stack whose FLOPs per token, everything counted, are within 1 % of `ncp`'s: more layers, a wider MLP."""
    target = flops_per_token(ncp, length).total
    layers = ncp.token_layers + ncp.concept_layers // ncp.concept.chunk_size
    spec = dataclasses.replace(
        ncp,
        encoder_layers=0,
        concept_layers=0,
        decoder_layers=layers,
        concept=ConceptSpec(enabled=False),
        ncp=NcpSpec(weight=0.0),
        vq=VqSpec(weight=0.0),
        **NO_ROUTES,
    )
    candidates = [
        dataclasses.replace(spec, intermediate_size=spec.intermediate_size + 8 * step)
        for step in range(-40, 81)
    ]
    best = min(candidates, key=lambda s: abs(flops_per_token(s, length).total - target))
    error = abs(flops_per_token(best, length).total / target - 1)
    assert error < 0.01, f"FLOPs differ by {error:.1%}"
    return best


@dataclass
class Trainee:
    """A model in training, and the times of its steps."""

    name: str
    spec: ModelSpec
    model: NCPModel
    optimizers: Optimizers
    micro_batch: list[float] = dataclasses.field(default_factory=list)
    optimizer: list[float] = dataclasses.field(default_factory=list)
    peak_bytes: int = 0

    def step_seconds(self, accumulate: int) -> float:
        """A step of `accumulate` micro-batches."""
        return accumulate * statistics.median(self.micro_batch) + statistics.median(self.optimizer)


def make_trainee(name: str, spec: ModelSpec, device: str, dtype: torch.dtype, compiled: bool) -> Trainee:
    """Build, initialise, and optionally compile one model."""
    model = build_model(spec, device=device, dtype=dtype)
    optimizers = build_optimizers(model, OptimizerSpec(lr=1e-3))
    if compiled:
        model.compile()
    return Trainee(name, spec, model, optimizers)


Clock = Callable[[], float]


def train_step(
    trainee: Trainee, ids: torch.Tensor, labels: torch.Tensor, clock: Clock = time.perf_counter
) -> tuple[float, float]:
    """One micro-batch and one optimizer step; returns the seconds of each."""
    start = clock()
    loss = trainee.model(ids, labels).loss
    assert loss is not None
    loss.backward()
    _synchronize(ids)
    between = clock()
    clip_grad_norm(trainee.model, 1.0)
    trainee.optimizers.step(1e-3)
    trainee.optimizers.zero_grad()
    _synchronize(ids)
    return between - start, clock() - between


def _synchronize(tensor: torch.Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize()


def activation_bytes(trainee: Trainee, ids: torch.Tensor, labels: torch.Tensor) -> int:
    """Bytes that one forward pass keeps for its backward (on a GPU: peak allocation of a whole step)."""
    if ids.is_cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        train_step(trainee, ids, labels)
        return torch.cuda.max_memory_allocated() - before
    own = {parameter.untyped_storage().data_ptr() for parameter in trainee.model.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = trainee.model(ids, labels).loss
    del loss
    return sum(saved.values())


def measure(
    trainees: Sequence[Trainee], ids: torch.Tensor, labels: torch.Tensor, rounds: int, clock: Clock
) -> None:
    """Warm up, then run all in turn."""
    for trainee in trainees:
        train_step(trainee, ids, labels)
        trainee.peak_bytes = activation_bytes(trainee, ids, labels)
    for _ in range(rounds):
        for trainee in trainees:
            micro_batch, optimizer = train_step(trainee, ids, labels, clock)
            trainee.micro_batch.append(micro_batch)
            trainee.optimizer.append(optimizer)


def machine(device: str, dtype: torch.dtype, compiled: bool) -> str:
    """What the numbers were measured on."""
    name = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU"
    capability = "" if device == "cuda" else f", {torch.backends.cpu.get_cpu_capability()}"
    mode = "compiled" if compiled else "eager"
    return (
        f"{name}{capability}, {torch.get_num_threads()} thread(s), torch {torch.__version__}, "
        f"Python {platform.python_version()}, {str(dtype).removeprefix('torch.')}, {mode}"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run and print a markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--widths", type=int, nargs="+", default=[256, 512, 1024])
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--accumulate", type=int, default=64, help="micro-batches in a step")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument(
        "--cpu-time", action="store_true", help="CPU seconds of the process, for a busy machine"
    )
    parser.add_argument("--no-routes", action="store_true", help="also measure NCP without residual routes")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--peak-flops", type=float, help="of the device, for MFU (H200 bf16: 989e12)")
    settings = parser.parse_args(argv)
    torch.set_num_threads(settings.threads)
    clock = time.process_time if settings.cpu_time else time.perf_counter
    dtype = torch.bfloat16 if settings.device == "cuda" else torch.float32

    print(
        f"{machine(settings.device, dtype, settings.compile)}; T = {settings.length}, batch {settings.batch}, "
        f"{settings.accumulate} micro-batches a step{'; CPU seconds' if settings.cpu_time else ''}\n"
    )
    print(
        "| d | model | layers | parameters | GFLOP/token | forward + backward s | optimizer s | tokens/s "
        "| time vs vanilla | forward + backward vs vanilla | MiB | MFU |"
    )
    print("|---:|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    worst = 0.0
    for width in settings.widths:
        ncp = ncp_spec(width, settings.length)
        specs = {"vanilla": vanilla_spec(ncp, settings.length), "NCP": ncp}
        if settings.no_routes:
            specs["NCP, no routes"] = dataclasses.replace(ncp, **NO_ROUTES)
        trainees = [
            make_trainee(name, spec, settings.device, dtype, settings.compile) for name, spec in specs.items()
        ]
        ids = torch.randint(0, VOCAB_SIZE, (settings.batch, settings.length), device=settings.device)
        labels = torch.cat((ids[:, 1:], torch.full_like(ids[:, :1], -100)), dim=1)
        measure(trainees, ids, labels, settings.rounds, clock)
        base = trainees[0].step_seconds(settings.accumulate)
        for trainee in trainees:
            spec, step = trainee.spec, trainee.step_seconds(settings.accumulate)
            per_token = flops_per_token(spec, settings.length).total
            rate = settings.accumulate * ids.numel() / step
            worst = max(worst, step / base if trainee.name == "NCP" else 0.0)
            towers = f"{spec.encoder_layers}/{spec.concept_layers}/{spec.decoder_layers}"
            layers = towers if spec.concept.enabled else str(spec.token_layers)
            mfu = f"{rate * per_token / settings.peak_flops:.1%}" if settings.peak_flops else "-"
            pass_seconds = statistics.median(trainee.micro_batch)
            pass_ratio = pass_seconds / statistics.median(trainees[0].micro_batch)
            print(
                f"| {width} | {trainee.name} | {layers} | {total_parameters(spec) / 1e6:.1f}M | {per_token / 1e9:.4f} "
                f"| {pass_seconds:.3f} | {statistics.median(trainee.optimizer):.3f} | {rate:.0f} | {step / base:.3f} "
                f"| {pass_ratio:.3f} | {trainee.peak_bytes / 2**20:.0f} | {mfu} |",
                flush=True,
            )
    print(f"\nWorst ratio of full NCP to equal-FLOPs vanilla: {worst:.3f} (goal: at most 1.15)")


if __name__ == "__main__":
    main()
