r"""Answers out of generated text, and when two answers are the same.

GSM8K answers are numbers. MATH answers are LaTeX, and one normaliser is applied to both sides: the published `answer`
fields are already normalised, in places wrongly (deleting the unit "ft" turned `\left(` into `\le(` and `\infty` into
`\iny`; deleting commas turned the list 4,6,14,15 into 461415), so the gold answer is taken from `\boxed{}` in the
worked solution instead.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?")
_STATED = re.compile(r"[Aa]nswer is:?\s*\$?(-?\s?\$?\d[\d,]*(?:\.\d+)?)")


def gsm8k_answer(text: str) -> str | None:
    """The number after 'the answer is' or '####', else the last number, in one spelling (`plain_number`)."""
    if "####" in text:
        text = text.rsplit("####", 1)[1]
    stated = _STATED.findall(text)
    found = stated or _NUMBER.findall(text)
    if not found:
        return None
    number = (stated[0] if stated else found[-1]).replace(",", "").replace("$", "").replace(" ", "")
    return plain_number(number)


def plain_number(text: str) -> str:
    """A decimal number in its shortest spelling: 1200.50 is 1200.5, 05 is 5, -0 is 0; anything else as it is."""
    if not re.fullmatch(r"-?\d+(?:\.\d+)?", text):
        return text
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    whole, _, fraction = digits.partition(".")
    whole, fraction = whole.lstrip("0") or "0", fraction.rstrip("0")
    plain = f"{whole}.{fraction}" if fraction else whole
    return plain if plain == "0" else sign + plain


def math_answer(text: str) -> str | None:
    r"""The stated final answer of a worked solution: 'The final answer is $...$. I hope', else the last `\boxed{...}`."""
    stated = re.search(r"[Ff]inal answer is:?\s*(.*?)\.?\s*I hope it is correct", text, re.DOTALL)
    if stated:
        return stated[1].strip()
    return last_boxed(text)


def last_boxed(text: str) -> str | None:
    r"""What the last `\boxed` or `\fbox` holds, braces matched; None where there is none or it never closes."""
    start = max(text.rfind(r"\boxed"), text.rfind(r"\fbox"))
    if start < 0:
        return None
    opening = text.find("{", start)
    between = text[start : opening if opening >= 0 else len(text)]
    if opening < 0 or between.strip() not in (r"\boxed", r"\fbox"):
        word = re.match(r"\\f?box(?:ed)?\s*(\S[^\s$.,]*)", text[start:])  # "\boxed 7", "\boxed7$"
        return word[1] if word else None
    depth = 0
    for index in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[opening + 1 : index]
    return None


_UNITS = (
    "degrees?|inch(?:es)?|feet|foot|miles?|yards?|cm|km|mm|meters?|centimeters?|square units?|units?|dollars?|cents?|"
    "points?|hours?|minutes?|seconds?|days?|weeks?|years?|mph|pounds?|ounces?|gallons?|students?|people|ways|cubic"
)


def normalise_math(answer: str) -> str:
    r"""A canonical spelling of a LaTeX answer: what is only notation goes, what is mathematics stays.

    Commas between digits are dropped only as thousands separators of a lone number (1,000 but not 4,6,14,15 nor
    (12,102)), units only as words of their own at the end, `\left` and `\right` only as whole commands.
    """
    text = answer.strip()
    text = re.sub(r"^\$+|\$+\.?$", "", text).strip()
    text = re.sub(r",\\!\s*(?=\d{3})", "", text).replace(r"\!", "").replace("\n", " ")
    text = re.sub(r"\\(?:left|right|big|Big|bigg|Bigg)(?![a-zA-Z])", "", text)
    text = re.sub(r"\\[dt]frac(?![a-zA-Z])", r"\\frac", text)
    text = re.sub(r"\\(?:,|;|:|quad|qquad| )|~", " ", text)
    text = re.sub(r"\^\s*\{?\s*\\circ\s*\}?|\\degree", "", text)
    text = text.replace(r"\$", "").replace(r"\%", "").replace("%", "")
    text = re.sub(
        rf"\\(?:text|mbox|mathrm)\s*\{{\s*(?:{_UNITS})\b[^}}]*\}}(?:\^\{{?\d\}}?)?\s*\.?$", "", text
    )
    text = re.sub(r"\\(?:text|mbox|mathrm|textbf|mathbf)\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(rf"(?<=\d)\s*(?:{_UNITS})\s*\.?$", "", text)
    text = (
        re.sub(r"(?<!\d)\s*\b(?:and|or)\b\s*", ",", text) if re.search(r"\d\s+(?:and|or)\s+", text) else text
    )
    if re.fullmatch(r"\s*-?\d{1,3}(?:,\d{3})+(?:\.\d+)?\s*", text):
        text = text.replace(",", "")
    text = re.sub(r"\\frac\s*(\d)\s*(\d)(?!\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{", text)
    text = re.sub(r"\\sqrt\s*(\d)", r"\\sqrt{\1}", text)
    text = re.sub(r"^(-?)(\d+)/(\d+)$", r"\1\\frac{\2}{\3}", text)
    text = re.sub(r"^[a-zA-Z]\s*=\s*", "", text)
    text = re.sub(r"\s+", "", text)
    text = re.sub(r"^\((?=[A-Z]\)$)|(?<=^\([A-Z])\)$", "", text)
    text = re.sub(r"(?<![\d.])\.(?=\d)", "0.", text)
    text = re.sub(r"(?<=\d)\.0+(?!\d)", "", text)
    return plain_number(text.rstrip("."))


def same_math(prediction: str | None, gold: str) -> bool:
    """Whether a predicted answer is the gold one, both put through the same normaliser."""
    return prediction is not None and normalise_math(prediction) == normalise_math(gold)


def token_f1(prediction: str, golds: Sequence[str]) -> float:
    """Harmonic mean of precision and recall of the words of `prediction`, against the gold answer it fits best.

    Words as SQuAD compares them: lower case, without punctuation and the articles a, an, the. For DROP this is simpler
    than its own metric, which also aligns several spans and demands equal numbers.
    """
    return max((_words_f1(_words(prediction), _words(gold)) for gold in golds), default=0.0)


def _words(text: str) -> list[str]:
    text = "".join(" " if character in string.punctuation else character for character in text.lower())
    return [word for word in text.split() if word not in ("a", "an", "the")]


def _words_f1(predicted: list[str], gold: list[str]) -> float:
    if not predicted or not gold:
        return float(predicted == gold)
    common = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * common / (len(predicted) + len(gold))
