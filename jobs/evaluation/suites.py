"""Suites: named lists of tasks. The name and the limit are part of an evaluation's identity.

- `quick`: seconds on a CPU; what the demo runs.
- `fast`: the 26 labels OLMo-core evaluates while it trains (its `fast` group).
- `easy`: OLMo 3's Base-Easy, 25 families in bits per byte, which tells small models apart where accuracy is chance.
- `main`: what of OLMo 3's Base-Main the data at hand can score, generation and execution included. Missing: GSM
  Symbolic, BigCodeBench, DS-1000, LeetCode, MultiPL-E, fill-in-the-middle, the questions rewritten from generation to
  multiple choice, and all held-out tasks. One greedy sample a question where the report draws up to 32.
- `families-30`: one way of asking each of thirty families. The list is ours: the 28 families of OLMo-core's groups
  and the two it leaves out as noisy, BoolQ and OpenBookQA. The public reports name no list.

Of Base-Easy's settings these differ, because the data at hand does: DBQA and ProtocolQA have three shots (five in
the report), QASPER and SciRIFF are their yes/no parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from curriculum.errors import InputError
from jobs.evaluation.tasks import LANGUAGES, MATH_SUBJECTS, MMLU_GROUPS, SKILLS, TASKS, Task

Suite = Mapping[str, tuple[str, ...]]
"""Family -> labels of its tasks. The average of a suite is taken over families, each the average of its tasks."""

_ARC = ("arc_challenge_test", "arc_easy_test")
_SKILLS_RC = tuple(f"basic_skills_{skill}_rc_5shot" for skill in SKILLS)
_MINERVA = tuple(f"minerva_math_{part}_gold_bpb_0shot" for part in MATH_SUBJECTS)


def _mmlu(*forms: str) -> tuple[str, ...]:
    return tuple(f"mmlu_{group}_test_{form}_5shot" for group in MMLU_GROUPS for form in forms)


def _mt_mbpp(languages: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"mt_mbpp_{language}_gold_bpb_3shot" for language in languages)


_CODE = {"humaneval": ("codex_humaneval_gold_bpb_3shot",), "mbpp": ("codex_mbpp_gold_bpb_3shot",)}
_READING = {
    "coqa": ("coqa_bpb_0shot",),
    "drop": ("drop_bpb_5shot",),
    "jeopardy": ("jeopardy_bpb_5shot",),
    "lambada": ("lambada_bpb_0shot",),
    "naturalqs": ("naturalqs_bpb_5shot",),
    "squad": ("squad_bpb_5shot",),
}

SUITES: dict[str, Suite] = {
    "quick": {"arc_easy": ("arc_easy_rc_0shot",), "sciq": ("sciq_rc_0shot",), "copa": ("copa",)},
    "fast": {
        "arc": tuple(f"{part}_{form}_5shot" for part in _ARC for form in ("bpb", "mc")),
        "hellaswag": ("hellaswag_bpb_5shot",),
        "mmlu": _mmlu("bpb", "mc"),
        "basic_skills": _SKILLS_RC,
        **_CODE,
        "minerva_math_500": ("minerva_math_500_gold_bpb_0shot",),
        "mt_mbpp": _mt_mbpp(("cpp", "java", "rust")),
        "copycolors": ("copycolors_10way",),
    },
    "easy": {
        "minerva_math": _MINERVA,
        **_CODE,
        "mt_mbpp": _mt_mbpp(LANGUAGES),
        "arc": tuple(f"{part}_bpb_5shot" for part in _ARC),
        "mmlu": _mmlu("bpb"),
        "csqa": ("csqa_val_bpb_5shot",),
        "hellaswag": ("hellaswag_bpb_5shot",),
        "winogrande": ("winogrande_val_bpb_5shot",),
        "socialiqa": ("socialiqa_val_bpb_5shot",),
        "piqa": ("piqa_val_bpb_5shot",),
        **_READING,
        "sciq": ("sciq_bpb_5shot",),
        "qasper": ("qasper_yesno_bpb_5shot",),
        "basic_skills": tuple(f"basic_skills_{skill}_bpb_5shot" for skill in SKILLS),
        "lab_bench_dbqa": ("lab_bench_dbqa_bpb_3shot",),
        "lab_bench_protocolqa": ("lab_bench_protocolqa_bpb_3shot",),
        "medmcqa": ("medmcqa_bpb_5shot",),
        "medqa": ("medqa_en_bpb_5shot",),
        "sciriff": ("sciriff_yesno_bpb_5shot",),
    },
    "main": {
        "gsm8k": ("gsm8k_8shot",),
        "minerva_math": tuple(f"minerva_math_{part}_4shot" for part in MATH_SUBJECTS),
        "minerva_math_500": ("minerva_math_500_4shot",),
        "humaneval": ("codex_humaneval_3shot",),
        "mbpp": ("codex_mbpp_3shot",),
        "arc_mc": tuple(f"{part}_mc_5shot" for part in _ARC),
        "mmlu_mc": _mmlu("mc"),
        "medmcqa_mc": ("medmcqa_mc_5shot",),
        "medqa_mc": ("medqa_en_mc_5shot",),
        "sciq_mc": ("sciq_mc_5shot",),
        "csqa_mc": ("csqa_val_mc_5shot",),
        "piqa_mc": ("piqa_val_mc_5shot",),
        "socialiqa_mc": ("socialiqa_val_mc_5shot",),
        "basic_skills_mc": tuple(f"basic_skills_{skill}_mc_5shot" for skill in SKILLS),
        "hellaswag_rc": ("hellaswag_val_rc_5shot",),
        "winogrande_rc": ("winogrande_val_rc_5shot",),
        "basic_skills_rc": _SKILLS_RC,
        "lambada": ("lambada_0shot",),
        "drop": ("drop_5shot",),
        "jeopardy": ("jeopardy_5shot",),
        "naturalqs": ("naturalqs_5shot",),
        "squad": ("squad_5shot",),
        "coqa": ("coqa_0shot",),
    },
    "families-30": {
        "arc_challenge": ("arc_challenge_test_rc_5shot",),
        "arc_easy": ("arc_easy_test_rc_5shot",),
        "hellaswag": ("hellaswag_rc_5shot",),
        "winogrande": ("winogrande_val_rc_5shot",),
        "csqa": ("csqa_val_rc_5shot",),
        "piqa": ("piqa_val_rc_5shot",),
        "socialiqa": ("socialiqa_val_rc_5shot",),
        "mmlu": _mmlu("rc"),
        "gsm8k": ("gsm8k_gold_bpb_5shot",),
        "minerva_math": _MINERVA,
        "minerva_math_500": ("minerva_math_500_gold_bpb_0shot",),
        **_CODE,
        "mt_mbpp": _mt_mbpp(LANGUAGES),
        **_READING,
        "copycolors": ("copycolors_10way",),
        "basic_skills": _SKILLS_RC,
        "lab_bench_dbqa": ("lab_bench_dbqa_rc_3shot",),
        "lab_bench_protocolqa": ("lab_bench_protocolqa_rc_3shot",),
        "medmcqa": ("medmcqa_rc_5shot",),
        "medqa": ("medqa_en_rc_5shot",),
        "qasper": ("qasper_yesno_rc_5shot",),
        "sciriff": ("sciriff_yesno_rc_5shot",),
        "boolq": ("boolq_val_rc_5shot",),
        "openbookqa": ("openbookqa_test_rc_5shot",),
    },
}


OWN_METRICS = (
    "accuracy",
    "accuracy_per_token",
    "accuracy_per_char",
    "accuracy_per_byte",
    "accuracy_pmi",
    "bits_per_byte",
    "greedy_match",
)
"""Metrics a task of one's own may be quoted by."""


class SuiteError(InputError):
    """A suite or task that does not exist; names the nearest one."""


def find_suite(name: str) -> Suite:
    """A suite by name, or one task by its label. Raises SuiteError."""
    if name in SUITES:
        return SUITES[name]
    return {find_task(name).family: (name,)}


def find_task(label: str) -> Task:
    """A task by its label. Raises SuiteError.

    `oe:FOLDER/VARIANT` is a task of one's own: the serialised requests below `oe_eval_tasks/` of the evaluation data, quoted
    by accuracy, or by the metric named after a `#`.
    """
    if label in TASKS:
        return TASKS[label]
    location, _, metric = label.partition("#")
    family, _, variant = location.removeprefix("oe:").partition("/")
    if location.startswith("oe:") and family and variant:
        if metric and metric not in OWN_METRICS:
            raise SuiteError(
                f"evaluation.suites: {label!r} is quoted by {metric!r}; use one of {', '.join(OWN_METRICS)}"
            )
        return Task(label=label, family=family, location=location, metric=metric or "accuracy", shots=0)
    near = get_close_matches(label, [*SUITES, *TASKS], n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(SUITES)}, or a task's label"
    raise SuiteError(f"evaluation.suites: {label!r} is no suite; {hint}")


def suite_tasks(name: str) -> list[Task]:
    """The tasks of a suite, in its order. Raises SuiteError."""
    return [find_task(label) for labels in find_suite(name).values() for label in labels]


def average_of_averages(suite: Suite, values: Mapping[str, float | None]) -> float | None:
    """Mean over families of the mean over their tasks (`values`: label -> value), so that MMLU's parts count once.

    Tasks without a value, and families left without any, do not take part; None when nothing is left. Give values of
    one metric only.
    """
    families = []
    for labels in suite.values():
        known = [value for label in labels if (value := values.get(label)) is not None]
        if known:
            families.append(sum(known) / len(known))
    return sum(families) / len(families) if families else None


def suite_average(name: str, results: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    """Averages over the families of a suite (`results`: label -> `evaluate_task`).

    `score`: of the quoted metric wherever that is one of 0 to 1 (accuracies, exact match, pass@1, F1). `bits_per_byte`:
    of the gold answers wherever they were scored.
    """
    suite = find_suite(name)
    scores = {
        label: result.get(result["metric"])
        for label, result in results.items()
        if result["metric"] != "bits_per_byte"
    }
    bits = {label: result.get("bits_per_byte") for label, result in results.items()}
    return {"score": average_of_averages(suite, scores), "bits_per_byte": average_of_averages(suite, bits)}


def suite_stderr(name: str, results: Mapping[str, Mapping[str, Any]], kind: str) -> float | None:
    """Standard error of `suite_average(name, results)[kind]`, `kind` being `score` or `bits_per_byte`.

    Tasks count as independent; each family's error is that of the mean of its tasks, the suite's that of the mean of
    its families. None when a task that takes part has no error of its own. Raises SuiteError for an unknown suite.
    """
    families = []
    for labels in find_suite(name).values():
        errors = []
        for label in labels:
            metric = _metric(results.get(label), kind)
            if metric is None:
                continue
            error = results[label].get(f"{metric}_stderr")
            if error is None:
                return None
            errors.append(float(error))
        if errors:
            families.append(math.hypot(*errors) / len(errors))
    return math.hypot(*families) / len(families) if families else None


def _metric(result: Mapping[str, Any] | None, kind: str) -> str | None:
    """Which number of a task takes part in the average, as `suite_average` chooses it."""
    if result is None:
        return None
    if kind == "score" and result["metric"] == "bits_per_byte":
        return None
    metric = result["metric"] if kind == "score" else "bits_per_byte"
    return metric if result.get(metric) is not None else None
