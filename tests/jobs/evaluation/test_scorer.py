"""The scorer against a brute-force reference, and the peer's four faults that it must not have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.evaluation.metrics import task_metrics
from jobs.evaluation.requests import Request
from jobs.evaluation.scorer import Score, score_requests, score_tokens
from jobs.evaluation.window import example_starts
from ncp_model import ModelSpec, NCPModel, build_model
from ncp_model.session import GenerationSession

WINDOW = 24


class ByteTokenizer:
    """One token a byte; 256 is EOS."""

    eos_id = 256

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(text.encode()) for text in texts]


@pytest.fixture(scope="module")
def model() -> NCPModel:
    torch.set_num_threads(1)
    return build_model(ModelSpec.preset("tiny"), seed=3)


def request(context: str, continuation: str, group: str = "0", choice: int = 0, gold: bool = True) -> Request:
    return Request(context=context, continuation=continuation, group=group, choice=choice, gold=gold)


def brute_force(model: NCPModel, one: Request, window: int) -> tuple[float, bool] | None:
    """One request, one row, full logits, float64 log-softmax."""
    context = list(one.context.encode()) or [ByteTokenizer.eos_id]
    continuation = list(one.continuation.encode())
    ids = (context + continuation)[:-1]
    if len(ids) > window:
        return None
    with torch.inference_mode():
        logits = model(torch.tensor([ids]), return_logits=True).logits[0].double()
    rows = logits[len(ids) - len(continuation) :]
    chosen = rows.log_softmax(-1)[range(len(continuation)), continuation]
    return float(chosen.sum()), rows.argmax(-1).tolist() == continuation


texts = st.text(alphabet="ab c\u00e9", max_size=30)
requests_strategy = st.lists(
    st.builds(request, context=texts, continuation=st.text(alphabet="ab c\u00e9", min_size=1, max_size=30)),
    min_size=1,
    max_size=8,
)


@given(
    requests=requests_strategy,
    batch_tokens=st.sampled_from([1, 40, 4096]),
    batch_logits=st.sampled_from([1, 10**7]),
)
@settings(max_examples=25, deadline=None)
def test_every_score_equals_the_brute_force_one(
    model: NCPModel, requests: list[Request], batch_tokens: int, batch_logits: int
) -> None:
    requests = [replace(one, group=str(number)) for number, one in enumerate(requests)]
    scores = score_requests(
        model,
        ByteTokenizer(),
        requests,
        sequence_length=WINDOW,
        batch_tokens=batch_tokens,
        batch_logits=batch_logits,
    )
    for one, score in zip(requests, scores, strict=True):
        expected = brute_force(model, one, WINDOW)
        if expected is None:
            assert score is None
            continue
        assert score is not None
        assert score.log_probability == pytest.approx(expected[0], abs=2e-4)
        assert score.greedy == expected[1]
        assert score.tokens == score.bytes == len(one.continuation.encode())
        assert score.characters == len(one.continuation)


@given(
    questions=st.lists(
        st.tuples(
            texts, st.lists(st.text(alphabet="ab c\u00e9", min_size=1, max_size=12), min_size=2, max_size=5)
        ),
        min_size=1,
        max_size=4,
    ),
    shots=st.sampled_from(["", "abc", "worked example "]),
    batch_tokens=st.sampled_from([1, 60, 4096]),
)
@settings(max_examples=40, deadline=None)
def test_sharing_the_context_among_choices_changes_no_score(
    model: NCPModel, questions: list[tuple[str, list[str]]], shots: str, batch_tokens: int
) -> None:
    requests = [
        request(shots + context * 3, choice, group=str(group), choice=number)
        for group, (context, choices) in enumerate(questions)
        for number, choice in enumerate(choices)
    ]
    shared, apart = (
        score_requests(
            model,
            ByteTokenizer(),
            requests,
            sequence_length=8 * WINDOW,
            batch_tokens=batch_tokens,
            share_prefixes=share_prefixes,
        )
        for share_prefixes in (True, False)
    )
    for one, other in zip(shared, apart, strict=True):
        assert one is not None and other is not None
        assert one.log_probability == pytest.approx(other.log_probability, abs=2e-4)
        assert one.greedy == other.greedy


def test_a_shared_context_is_run_once(model: NCPModel, monkeypatch: pytest.MonkeyPatch) -> None:
    appended: list[tuple[int, ...]] = []
    append = GenerationSession.append

    def counted(
        self: GenerationSession, ids: torch.Tensor, *arguments: object, **keywords: object
    ) -> torch.Tensor:
        appended.append(tuple(ids.shape))
        return append(self, ids, *arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(GenerationSession, "append", counted)
    choices = [
        request("a context of some length", text, choice=n) for n, text in enumerate(("one", "four", "six"))
    ]
    score_requests(model, ByteTokenizer(), choices, sequence_length=64)
    assert appended == [(1, 24), (3, 3)]


def test_worked_examples_are_run_once_for_all_questions(
    model: NCPModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended: list[tuple[int, ...]] = []
    append = GenerationSession.append

    def counted(
        self: GenerationSession, ids: torch.Tensor, *arguments: object, **keywords: object
    ) -> torch.Tensor:
        appended.append(tuple(ids.shape))
        return append(self, ids, *arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(GenerationSession, "append", counted)
    asked = [request("worked examples " * 3 + f"question {n}", "answer", group=str(n)) for n in range(5)]
    score_requests(model, ByteTokenizer(), asked, sequence_length=80)
    assert appended == [(1, 57), (5, 1), (5, 5)]


def test_scores_do_not_depend_on_the_other_requests(model: NCPModel) -> None:
    requests = [request(f"question {n} " * (n % 5), f" answer {n}", group=str(n)) for n in range(30)]
    together = score_requests(model, ByteTokenizer(), requests, sequence_length=4 * WINDOW)
    for one, score in zip(requests, together, strict=True):
        (alone,) = score_requests(model, ByteTokenizer(), [one], sequence_length=4 * WINDOW)
        assert alone is not None and score is not None
        assert score.log_probability == pytest.approx(alone.log_probability, rel=1e-5)
        assert (score.tokens, score.greedy) == (alone.tokens, alone.greedy)


def test_lettered_choices_cost_one_row(model: NCPModel) -> None:
    rows = []
    hook = model.register_forward_pre_hook(lambda _, args: rows.append(args[0].shape[0]))
    try:
        choices = [request("Which?", letter, choice=n) for n, letter in enumerate("ABCD")]
        score_requests(model, ByteTokenizer(), choices, sequence_length=WINDOW)
    finally:
        hook.remove()
    assert rows == [1]


def test_logits_are_formed_only_where_they_are_read(model: NCPModel) -> None:
    shapes = []
    hook = model.get_submodule("lm_head").register_forward_hook(
        lambda _, __, output: shapes.append(tuple(output.shape))
    )
    try:
        score_requests(model, ByteTokenizer(), [request("a long context", "xy")], sequence_length=WINDOW)
    finally:
        hook.remove()
    assert shapes == [(2, 512)]


def test_tokens_of_a_harness_are_truncated_from_the_left_and_the_continuation_never(model: NCPModel) -> None:
    contexts, continuation = (list(b"z" * 100 + b"context"), list(b"zzzzzzzzcontext")), list(b"0123456789")
    pairs = [(context, continuation) for context in contexts]
    scores = score_tokens(model, pairs, pad_id=256, sequence_length=WINDOW)
    assert scores[0] is not None and scores[0] == scores[1]


def test_an_empty_context_starts_from_eos(model: NCPModel) -> None:
    (score,) = score_requests(model, ByteTokenizer(), [request("", "x")], sequence_length=WINDOW)
    with torch.inference_mode():
        logits = model(torch.tensor([[256]]), return_logits=True).logits[0, 0]
    assert score is not None
    assert score.log_probability == pytest.approx(float(logits.log_softmax(-1)[ord("x")]), abs=1e-5)


def test_progress_reaches_the_total_and_the_mode_is_restored(model: NCPModel) -> None:
    calls: list[tuple[int, int]] = []
    model.train()
    requests = [request("c", "x" * n, group=str(n)) for n in (1, 5, WINDOW + 1)]
    score_requests(
        model,
        ByteTokenizer(),
        requests,
        sequence_length=WINDOW,
        batch_tokens=1,
        progress=lambda *c: calls.append(c),
    )
    assert model.training
    assert calls[-1] == (2, 2)


# --- the four faults of ai2-olmo-eval 0.9.0 --------------------


def test_fault_1_several_data_sets_are_all_kept() -> None:
    from jobs.evaluation.suites import suite_tasks

    tasks = suite_tasks("fast")
    locations = [task.location for task in tasks]
    assert len(locations) == 26
    assert {f"mmlu:{group}/test/mc/5" for group in ("stem", "humanities", "social_sciences", "other")} <= set(
        locations
    )


def score(log_probability: float, text: str, tokens: int) -> Score:
    return Score(
        log_probability=log_probability,
        tokens=tokens,
        bytes=len(text.encode()),
        characters=len(text),
        greedy=False,
    )


@pytest.mark.parametrize(
    ("metric", "winner"),
    [("accuracy", 0), ("accuracy_per_token", 1), ("accuracy_per_char", 2), ("accuracy_per_byte", 3)],
)
def test_fault_2_each_accuracy_is_ranked_by_its_own_score(metric: str, winner: int) -> None:
    answers = ["a", "bbbb", "cccccccc", "\u00e9" * 7]
    scores = [
        score(-4.0, "a", 1),
        score(-5.0, "bbbb", 10),
        score(-4.2, "cccccccc", 1),
        score(-4.3, "\u00e9" * 7, 1),
    ]
    for gold in range(4):
        requests = [request("q", text, choice=n, gold=n == gold) for n, text in enumerate(answers)]
        assert getattr(task_metrics(requests, scores), metric) == float(gold == winner)


def test_fault_3_a_continuation_longer_than_the_window_is_skipped_and_counted(model: NCPModel) -> None:
    requests = [
        request("q", "x" * (WINDOW + 1), group="long", choice=0),
        request("q", "x", group="long", choice=1, gold=False),
        request("q", "x" * WINDOW, group="fits", choice=0),
        request("q", "y", group="fits", choice=1, gold=False),
    ]
    scores = score_requests(model, ByteTokenizer(), requests, sequence_length=WINDOW)
    assert [one is None for one in scores] == [True, True, False, False]
    metrics = task_metrics(requests, scores)
    assert (metrics.questions, metrics.skipped) == (1, 1)


def test_a_prompt_too_long_loses_whole_examples_and_every_choice_the_same(model: NCPModel) -> None:
    """Three examples of six tokens and a question of seven in a window of 16: one example stays."""
    text = "Q: aA\n\nQ: bB\n\nQ: cC\n\nQ: dd A:"
    starts = example_starts(text, 3)
    whole = [
        Request(context=text, continuation=answer, group="0", choice=n, gold=n == 0, starts=starts)
        for n, answer in enumerate(("x", "yyyy"))
    ]
    room = len("Q: cC\n\nQ: dd A:") + 3  # the longer answer's last token is never read
    scores = score_requests(model, ByteTokenizer(), whole, sequence_length=room)
    left = [request(text[starts[2] :], one.continuation, choice=one.choice, gold=one.gold) for one in whole]
    expected = score_requests(model, ByteTokenizer(), left, sequence_length=room)
    assert [one.dropped for one in scores if one] == [2, 2]
    assert [one.log_probability for one in scores if one] == pytest.approx(
        [one.log_probability for one in expected if one], rel=1e-4
    )
    metrics = task_metrics(whole, scores)
    assert (metrics.questions, metrics.skipped, metrics.n_truncated) == (1, 0, 1)
    none = score_requests(model, ByteTokenizer(), whole, sequence_length=len("Q: dd A:") + 2)
    assert none == [None, None] and task_metrics(whole, none).skipped == 1


def test_fault_4_nothing_scored_is_no_division_by_zero() -> None:
    for requests, scores in (([], []), ([request("q", "x" * 99)], [None])):
        metrics = task_metrics(requests, scores)
        assert metrics.questions == 0
        assert metrics.accuracy is metrics.bits_per_byte is metrics.nats_per_token is None


# --- metrics ---------------------------------------------------------------------------------------------------------


def test_bits_per_byte_divides_by_utf8_bytes_of_the_gold_answer() -> None:
    requests = [request("q", " \u00e9", gold=True), request("q", " no", choice=1, gold=False)]
    metrics = task_metrics(requests, [score(-3 * math.log(2), " \u00e9", 2), score(-1.0, " no", 1)])
    assert metrics.bits_per_byte == pytest.approx(1.0)


def test_pmi_ranks_by_the_difference_to_the_unconditional_twin() -> None:
    requests, scores = [], []
    for choice, (conditional, unconditional) in enumerate([(-2.0, -1.0), (-3.0, -9.0)]):
        for value, twin in ((conditional, False), (unconditional, True)):
            requests.append(
                Request(
                    context="",
                    continuation="xy",
                    group="0",
                    choice=choice,
                    gold=choice == 1,
                    unconditional=twin,
                )
            )
            scores.append(score(value, "xy", 1))
    metrics = task_metrics(requests, scores)
    assert (metrics.accuracy, metrics.accuracy_pmi) == (0.0, 1.0)


def test_standard_error_is_that_of_the_sample() -> None:
    requests, scores = [], []
    for question in range(10):
        for choice in range(2):
            requests.append(
                request("q", "x", group=str(question), choice=choice, gold=choice == int(question < 3))
            )
            scores.append(score(-1.0 - choice, "x", 1))
    metrics = task_metrics(requests, scores)
    assert metrics.accuracy == 0.7
    assert metrics.accuracy_stderr == pytest.approx(math.sqrt(0.7 * 0.3 / 9))
    assert metrics.chance == 0.5
