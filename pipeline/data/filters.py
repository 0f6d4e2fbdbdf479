"""datatrove's quality filters by name, and the word tokenizer they need without a model download."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.pipeline.filters.base_filter import BaseFilter
from datatrove.utils.logging import logger
from datatrove.utils.word_tokenizers import WordTokenizer

from curriculum.errors import nearest
from curriculum.schema import CleaningSpec
from pipeline.data.errors import SourceError

logger.disable("datatrove")  # its steps report to the terminal; counts are in the receipts

_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+")
_OWN_PARAMETERS = ("language", "exclusion_writer")
_WORD = re.compile(r"\w+(?:['-]\w+)*|[^\w\s]")


class PlainWordTokenizer(WordTokenizer):
    """Words and sentences by regular expression. datatrove's own for English is spaCy's blank model, which cuts nearly
    alike and is not worth a dependency of its own."""

    def __init__(self) -> None:
        super().__init__("en")

    def word_tokenize(self, text: str) -> list[str]:
        return _WORD.findall(text)

    def sent_tokenize(self, text: str) -> list[str]:
        return [sentence for sentence in _SENTENCE_END.split(text) if sentence.strip()]

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        starts = [0, *(match.end() for match in _SENTENCE_END.finditer(text))]
        return list(zip(starts, [*starts[1:], len(text)], strict=True))


FILTERS: Mapping[str, Callable[..., BaseFilter]] = {
    "gopher_repetition": GopherRepetitionFilter,
    "gopher_quality": GopherQualityFilter,
    "c4": C4QualityFilter,
    "fineweb": FineWebQualityFilter,
}


def check_settings(key: str, spec: CleaningSpec) -> None:
    """Hold the settings of each filter against the filter's own parameters.

    Raises SourceError naming key, value and fix: settings of a filter that is not used, an unknown name, a value of
    another kind than the filter's default, a number that is not finite.
    """
    for name, settings in spec.settings.items():
        where = f"{key}.settings.{name}"
        if name not in spec.filters:
            raise SourceError(
                f"{where}: {name!r} is not in {key}.filters; add it there or leave its settings out"
            )
        known = {
            parameter.name: parameter.default
            for parameter in inspect.signature(FILTERS[name]).parameters.values()
            if parameter.name not in _OWN_PARAMETERS
        }
        for setting, value in settings.items():
            if setting not in known:
                raise SourceError(f"{where}.{setting}: {name} has no such setting; {nearest(setting, known)}")
            wanted = _wanted(known[setting], value)
            if wanted:
                raise SourceError(
                    f"{where}.{setting}: {value!r} is not {wanted}; its default is {known[setting]!r}"
                )


def _wanted(default: Any, value: Any) -> str | None:
    """What a value should have been, by the default of its parameter; None when it may stand. Null switches a check off."""
    if value is None or default is None or default is inspect.Parameter.empty:
        return None
    if isinstance(default, bool):
        return None if isinstance(value, bool) else "true or false"
    if isinstance(default, int | float):
        whole = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return None if whole else "a finite number"
    if isinstance(default, str):
        return None if isinstance(value, str) else "a text"
    if isinstance(default, list | tuple):
        return None if isinstance(value, list | tuple) else "a list"
    return None


class FilterChain:
    """The filters of a spec, with a count per filter and reason."""

    def __init__(self, spec: CleaningSpec):
        words = PlainWordTokenizer()
        self._filters: Sequence[tuple[str, BaseFilter]] = [
            (name, FILTERS[name](language=words, **spec.settings.get(name, {}))) for name in spec.filters
        ]
        self.removed: dict[str, int] = {}

    def keep(self, document: Document) -> bool:
        """Whether every filter keeps a document; a filter may have shortened its text (C4 drops lines)."""
        for name, one in self._filters:
            result = one.filter(document)
            kept, reason = result if isinstance(result, tuple) else (result, "")
            if not kept:
                label = f"{name}:{reason}" if reason else name
                self.removed[label] = self.removed.get(label, 0) + 1
                return False
        return True
