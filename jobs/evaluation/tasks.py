"""Tasks: what can be asked of a model, as data.

A task is one way of asking one benchmark: its requests, its number of shots, and the metric that is quoted for it.
Labels are those of OLMo-core's in-loop evaluator (ai2-olmo-eval 0.9.0) where it has the task, and so is the metric that
is quoted, so that numbers can be laid side by side:
`_rc_` ranks the full answers, `_mc_` ranks the letters of listed answers, `_bpb_` scores the gold answer only.
"""

from __future__ import annotations

from dataclasses import dataclass

LANGUAGES = (
    "bash",
    "c",
    "cpp",
    "csharp",
    "go",
    "haskell",
    "java",
    "javascript",
    "matlab",
    "php",
    "python",
    "r",
    "ruby",
    "rust",
    "scala",
    "swift",
    "typescript",
)
"""The seventeen languages of MT-MBPP."""
SKILLS = (
    "arithmetic",
    "coding",
    "common_knowledge",
    "logical_reasoning",
    "pattern",
    "string_operations",
)
"""The six parts of Basic Skills."""
MATH_SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)
"""The seven parts of Minerva MATH."""
MMLU_GROUPS = ("stem", "humanities", "social_sciences", "other")


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One benchmark asked in one way."""

    label: str
    family: str
    """The benchmark it belongs to; a suite averages inside families first."""
    location: str
    """Where its requests are (`readers.load_requests`)."""
    metric: str
    """The field of `TaskMetrics` that is quoted: accuracy, accuracy_per_char, bits_per_byte, exact_match, ..."""
    shots: int

    @property
    def gold_only(self) -> bool:
        """Only the gold answers are scored."""
        return self.metric == "bits_per_byte"

    @property
    def generative(self) -> bool:
        """Answered by generating text, not by log-likelihood (`jobs.evaluation.generative`)."""
        return self.metric in ("exact_match", "f1", "pass_at_1")

    @property
    def executes(self) -> bool:
        """Judged by running what was generated."""
        return self.metric == "pass_at_1"


def _table() -> list[Task]:
    tasks: list[Task] = []

    def add(label: str, family: str, location: str, metric: str, shots: int) -> None:
        tasks.append(Task(label=label, family=family, location=location, metric=metric, shots=shots))

    # Multiple choice served as rc (rank answers), bpb (gold answer only) and mc (rank letters), five shots.
    for family, directory, split, ranked_by in (
        ("arc_challenge", "arc_challenge", "val_", "accuracy_per_char"),
        ("arc_challenge", "arc_challenge", "test_", "accuracy_per_char"),
        ("arc_easy", "arc_easy", "val_", "accuracy_per_char"),
        ("arc_easy", "arc_easy", "test_", "accuracy_per_char"),
        ("boolq", "boolq", "val_", "accuracy"),
        ("csqa", "csqa", "val_", "accuracy_per_char"),
        ("hellaswag", "hellaswag", "", "accuracy_per_char"),
        ("hellaswag", "hellaswag", "val_", "accuracy_per_char"),
        ("openbookqa", "openbookqa", "val_", "accuracy_per_char"),
        ("openbookqa", "openbookqa", "test_", "accuracy_per_char"),
        ("piqa", "piqa", "val_", "accuracy_per_char"),
        ("socialiqa", "socialiqa", "val_", "accuracy_per_char"),
        ("winogrande", "winogrande", "val_", "accuracy_per_char"),
        ("sciq", "sciq", "", "accuracy"),
        ("medmcqa", "medmcqa", "", "accuracy"),
        ("medqa", "medqa_en", "", "accuracy"),
        ("qasper", "qasper_yesno", "", "accuracy"),
        ("sciriff", "sciriff_yesno", "", "accuracy"),
        *(("basic_skills", f"basic_skills_{skill}", "", "accuracy") for skill in SKILLS),
    ):
        for form, files, metric in (
            ("rc", "rc", ranked_by),
            ("bpb", "rc", "bits_per_byte"),
            ("mc", "mc", "accuracy"),
        ):
            add(f"{directory}_{split}{form}_5shot", family, f"oe:{directory}/{split}{files}_5shot", metric, 5)
    for part in ("dbqa", "protocolqa"):
        name = f"lab_bench_{part}"
        for form, files, metric in (
            ("rc", "rc", "accuracy"),
            ("bpb", "rc", "bits_per_byte"),
            ("mc", "mc", "accuracy"),
        ):
            add(f"{name}_{form}_3shot", name, f"oe:{name}/{files}_3shot", metric, 3)
    for group in MMLU_GROUPS:
        for split, files in (("val", "validation"), ("test", "test")):
            for form, kind, metric in (
                ("rc", "rc", "accuracy_per_char"),
                ("bpb", "rc", "bits_per_byte"),
                ("mc", "mc", "accuracy_per_char"),  # letters are equally long: the same number as accuracy
            ):
                add(f"mmlu_{group}_{split}_{form}_5shot", "mmlu", f"mmlu:{group}/{files}/{kind}/5", metric, 5)

    # Zero-shot multiple choice: short prompts, so the ones a small machine can afford.
    for family, metric in (
        ("arc_easy", "accuracy"),
        ("sciq", "accuracy"),
        ("openbookqa", "accuracy_per_char"),
    ):
        add(f"{family}_rc_0shot", family, f"oe:{family}/rc_0shot", metric, 0)
    for family, metric in (
        ("piqa", "accuracy_per_char"),
        ("winogrande", "accuracy"),
        ("csqa", "accuracy_per_char"),
    ):
        add(f"{family}_rc_0shot", family, f"oe:{family}/rc_0shot", metric, 0)
    add("copa", "copa", "copa:validation", "accuracy", 0)
    add("copycolors_10way", "copycolors", "oe:copycolors/10way", "accuracy", 3)
    add("copycolors_xl_10way", "copycolors", "oe:copycolors/xl_10way", "accuracy", 3)

    # Tasks that are generated, scored on their gold answer.
    for label, family, location, shots in (
        ("gsm8k_gold_bpb_5shot", "gsm8k", "gsm8k/gold_bpb_5shot", 8),  # the file holds eight solved examples
        ("codex_humaneval_gold_bpb_0shot", "humaneval", "codex_humaneval/gold_bpb_0shot", 0),
        ("codex_humaneval_gold_bpb_3shot", "humaneval", "codex_humaneval/gold_bpb_3shot", 3),
        ("codex_mbpp_gold_bpb_3shot", "mbpp", "codex_mbpp/gold_bpb_3shot", 3),
        ("coqa_bpb_0shot", "coqa", "coqa/bpb_0shot", 0),
        ("drop_bpb_5shot", "drop", "drop/bpb_5shot", 5),
        ("jeopardy_bpb_5shot", "jeopardy", "jeopardy/bpb_5shot", 5),
        ("lambada_bpb_0shot", "lambada", "lambada/bpb_0shot", 0),
        ("naturalqs_bpb_5shot", "naturalqs", "naturalqs_open/bpb_5shot", 5),
        ("squad_bpb_5shot", "squad", "squad/bpb_5shot", 5),
        # Four solved examples, whatever the directories are called.
        ("minerva_math_500_gold_bpb_0shot", "minerva_math_500", "minerva_math_500/gold_bpb_0shot", 4),
        *(
            (f"minerva_math_{part}_gold_bpb_0shot", "minerva_math", f"minerva_math_{part}/gold_bpb_0shot", 4)
            for part in MATH_SUBJECTS
        ),
        *(
            (f"mt_mbpp_{name}_gold_bpb_3shot", "mt_mbpp", f"mt_mbpp_{name}/gold_bpb_3shot", 3)
            for name in LANGUAGES
        ),
    ):
        add(label, family, f"oe:{location}", "bits_per_byte", shots)
    add("lambada_0shot", "lambada", "oe:lambada/bpb_0shot", "greedy_match", 0)

    # The same tasks, generated and judged. Their requests are the prompts of the files above.
    for label, family, location, metric, shots in (
        ("gsm8k_8shot", "gsm8k", "gsm8k/gold_bpb_5shot", "exact_match", 8),
        ("minerva_math_500_4shot", "minerva_math_500", "minerva_math_500/gold_bpb_0shot", "exact_match", 4),
        *(
            (
                f"minerva_math_{part}_4shot",
                "minerva_math",
                f"minerva_math_{part}/gold_bpb_0shot",
                "exact_match",
                4,
            )
            for part in MATH_SUBJECTS
        ),
        ("codex_humaneval_3shot", "humaneval", "codex_humaneval/gold_bpb_3shot", "pass_at_1", 3),
        ("codex_mbpp_3shot", "mbpp", "codex_mbpp/gold_bpb_3shot", "pass_at_1", 3),
        ("coqa_0shot", "coqa", "coqa/bpb_0shot", "f1", 0),
        ("drop_5shot", "drop", "drop/bpb_5shot", "f1", 5),
        ("jeopardy_5shot", "jeopardy", "jeopardy/bpb_5shot", "f1", 5),
        ("naturalqs_5shot", "naturalqs", "naturalqs_open/bpb_5shot", "f1", 5),
        ("squad_5shot", "squad", "squad/bpb_5shot", "f1", 5),
    ):
        add(label, family, f"oe:{location}", metric, shots)
    return tasks


TASKS: dict[str, Task] = {task.label: task for task in _table()}
"""Every task by label."""
