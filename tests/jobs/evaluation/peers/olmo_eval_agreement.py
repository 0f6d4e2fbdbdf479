"""Run in an environment that holds `ai2-olmo-eval`: the same model, the same requests, its metric classes and our scorer.

Prints one JSON line a task: the largest difference of a request's log-probability, the questions in which the chosen
answer differs, and both values of the quoted metric. Usage: olmo_eval_agreement.py DOLMA2_JSON OLMO_EVAL_ASSET LIMIT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from olmo_eval import HFTokenizer, ICLMetric, build_task  # pyright: ignore[reportMissingImports]

from jobs.evaluation.metrics import task_metrics
from jobs.evaluation.readers import load_requests
from jobs.evaluation.scorer import score_requests
from jobs.evaluation.tasks import TASKS
from ncp_model import ModelSpec, build_model
from pipeline.data.tokenizer import Tokenizer

WINDOW = 1024
PEER_LABELS = {
    "arc_easy_test_rc_5shot": "arc_easy_test_rc_5shot",
    "arc_challenge_test_rc_5shot": "arc_challenge_test_rc_5shot",
    "arc_easy_test_mc_5shot": "arc_easy_test_mc_5shot",
    "csqa_val_bpb_5shot": "csqa_val_bpb_5shot",
    "copa": "copa",
    "mmlu_stem_val_rc_5shot": "mmlu_stem_val_rc_5shot",
    "mmlu_stem_val_mc_5shot": "mmlu_stem_val_mc_5shot",
    "piqa_val_rc_5shot": "piqa_val_rc_5shot",
    "winogrande_val_rc_5shot": "winogrande_val_rc_5shot",
    "codex_humaneval_gold_bpb_3shot": "codex_humaneval_gold_bpb_3shot",
}


def main(tokenizer_file: str, asset: str, limit: int) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    spec = ModelSpec.from_dict(
        {**ModelSpec.preset("tiny").to_dict(), "vocab_size": 100_352, "max_sequence_length": WINDOW}
    )
    model = build_model(spec, seed=5).eval()
    with torch.no_grad():  # a fresh model is nearly uniform; sharpen it so that choices differ
        model.lm_head.weight.mul_(4)
    ours = Tokenizer(Path(tokenizer_file).read_bytes())
    theirs = HFTokenizer(tokenizer_file, pad_token_id=100277, eos_token_id=100257)
    for label, peer_label in PEER_LABELS.items():
        print(
            json.dumps({"task": label, **agreement(model, ours, theirs, label, peer_label, asset, limit)}),
            flush=True,
        )


def agreement(model, ours, theirs, label, peer_label, asset, limit) -> dict[str, object]:
    task = TASKS[label]
    peer = build_task(peer_label, theirs, model_ctx_len=WINDOW)
    metric = ICLMetric(peer.metric_type)
    samples = [sample for sample in peer.samples if sample["doc_id"] < limit]
    for start in range(0, len(samples), 2):
        batch = peer.collate_fn(samples[start : start + 2])
        with torch.inference_mode():
            metric.update(batch, model(batch["input_ids"]).logits)
    raw = metric.loglikelihoods if peer.metric_type == "acc" else metric.celosses
    peer_scores = {}
    for sample, (_, _, value) in zip(samples, raw, strict=True):
        total = value if peer.metric_type == "acc" else -value * sample["cont_str_len"]
        peer_scores[tuple(sample["ctx"]), tuple(sample["continuation"])] = total
    requests = load_requests(Path(asset), task.location, gold_only=task.gold_only)
    encode = {t: tuple(map(int, ours.encode(t))) for r in requests for t in (r.context, r.continuation)}
    requests = [r for r in requests if (encode[r.context], encode[r.continuation]) in peer_scores]
    scores = score_requests(model, ours, requests, sequence_length=WINDOW)
    difference, relative = 0.0, 0.0
    chosen: dict[str, list[tuple[float, float, int]]] = {}
    for request, score in zip(requests, scores, strict=True):
        assert score is not None
        expected = peer_scores[encode[request.context], encode[request.continuation]]
        difference = max(difference, abs(score.log_probability - expected))
        relative = max(relative, abs(score.log_probability - expected) / abs(expected))
        chosen.setdefault(request.group, []).append((score.log_probability, expected, request.choice))
    other = sum(max(c)[2] != max((b, a, n) for a, b, n in c)[2] for c in chosen.values())
    computed = {name: float(value) for name, value in metric.compute().items()}
    mine = task_metrics(requests, scores)
    return {
        "requests": len(requests),
        "peer_requests": len(samples),
        "largest_difference": difference,
        "largest_relative": relative,
        "other_choices": other,
        "peer": computed,
        "accuracy": mine.accuracy,
        "accuracy_per_char": mine.accuracy_per_char,
        "bits_per_byte": mine.bits_per_byte,
    }


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
