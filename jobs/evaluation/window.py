"""What of a prompt goes into the model's window: the question whole or not at all, and as many worked examples as fit.

A prompt is worked examples and a question, with blank lines between them. One that is longer than the window loses whole
examples, the first ones first; a question that does not fit without any is not asked. Cutting tokens from the left, as
harnesses do, leaves half an example or half a question in front of the answer, and a score that looks like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

Encode = Callable[[Sequence[str]], Sequence[Iterable[int]]]
"""Ids of each text, without special tokens."""
_BLANK = "\n\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A context, and how much of the window it may take."""

    context: str
    starts: tuple[int, ...]
    """Where each worked example and, last, the question start (`example_starts`); () where nothing may be dropped."""
    room: int
    """Most tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """What of a prompt fits."""

    context: str
    ids: tuple[int, ...]
    dropped: int
    """Worked examples left out."""


def example_starts(context: str, shots: int) -> tuple[int, ...]:
    """Where each of the `shots` worked examples starts, and the question last; () where that can't be told.

    Told by the blank lines, where there is one for each example (or one more: an introduction comes first); else by the
    blank lines after which the context's own first word comes again (`Problem:`), where there are as many.
    """
    if shots < 1:
        return ()
    blanks = _ends(context, _BLANK)
    if len(blanks) == shots:
        return (0, *blanks)
    if len(blanks) == shots + 1:
        return tuple(blanks)
    head = context.split(maxsplit=1)[0] if context.strip() else ""
    again = [end - len(head) for end in _ends(context, _BLANK + head)] if head else []
    return (0, *again[:shots]) if len(again) >= shots else ()


def fit_prompts(prompts: Sequence[Prompt], encode: Encode, eos_id: int) -> list[Fitted | None]:
    """Every prompt with the fewest worked examples dropped that let it fit; None where its question alone does not.

    An empty context becomes one EOS, the token that precedes every document in training.
    """
    fitted: list[Fitted | None] = [None] * len(prompts)
    waiting = list(range(len(prompts)))
    for dropped in range(1 + max((len(prompt.starts) for prompt in prompts), default=0)):
        texts = {index: _without(prompts[index], dropped) for index in waiting}
        waiting = [index for index in waiting if texts[index] is not None]
        distinct = list(dict.fromkeys(text for text in texts.values() if text is not None))
        ids = {
            text: tuple(int(token) for token in tokens) or (eos_id,)
            for text, tokens in zip(distinct, encode(distinct), strict=True)
        }
        for index in waiting:
            text = texts[index]
            if text is not None and len(ids[text]) <= prompts[index].room:
                fitted[index] = Fitted(context=text, ids=ids[text], dropped=dropped)
        waiting = [index for index in waiting if fitted[index] is None]
        if not waiting:
            break
    return fitted


def _without(prompt: Prompt, dropped: int) -> str | None:
    """The context without its first `dropped` examples; None when it has not so many."""
    if dropped == 0:
        return prompt.context
    if dropped >= len(prompt.starts):
        return None
    return prompt.context[: prompt.starts[0]] + prompt.context[prompt.starts[dropped] :]


def _ends(text: str, mark: str) -> list[int]:
    """Where each occurrence of `mark` ends."""
    ends, found = [], text.find(mark)
    while found >= 0:
        ends.append(found + len(mark))
        found = text.find(mark, found + len(mark))
    return ends
