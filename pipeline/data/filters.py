"""datatrove's quality filters by name, and the word tokenizer they need without a model download."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

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

from curriculum.schema import CleaningSpec

logger.disable("datatrove")  # its steps report to the terminal; counts are in the receipts

_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+")
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
