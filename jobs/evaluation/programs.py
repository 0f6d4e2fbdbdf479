"""Programs out of generated text: what is run to decide whether a completion is right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

HUMANEVAL_STOPS = (
    "\nclass ",
    "\ndef ",
    "\n#",
    "\nif ",
    "\nprint(",
    "\nfrom ",
    "\nimport ",
    "\n```",
    "\nassert ",
)
"""Whatever begins a new statement at the left margin ends the function that was asked for."""
MBPP_STOPS = ("```", "\n\nWrite a")


def humaneval_program(document: Mapping[str, Any], completion: str) -> str:
    """Prompt, completion, tests, and the call that runs them."""
    return f"{document['prompt']}{completion}\n{document['test']}\ncheck({document['entry_point']})\n"


def mbpp_program(document: Mapping[str, Any], completion: str) -> str:
    """Set-up, completion, and the three assertions the task gives."""
    return "\n".join([document["test_setup_code"], completion, *document["test_list"], ""])


def truncate_at(text: str, stops: Sequence[str]) -> str:
    """`text` up to the first of `stops`."""
    ends = [found for stop in stops if (found := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased estimate of the chance that at least one of k samples is right (Chen et al. 2021, equation 1).

    1 - C(samples - correct, k) / C(samples, k). Raises ValueError unless 1 <= k <= samples.
    """
    if not 1 <= k <= samples or not 0 <= correct <= samples:
        raise ValueError(
            f"pass@{k}: needs 1 <= k <= samples = {samples} and 0 <= correct = {correct} <= samples"
        )
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)
