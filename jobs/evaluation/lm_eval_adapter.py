"""lm-eval's harness on our models: an optional extra for whoever has tasks written for it (`pip install lm-eval`).

    from lm_eval import simple_evaluate
    results = simple_evaluate(model=HarnessModel(model, tokenizer, sequence_length=8192), tasks=["my_task"], task_manager=...)

The harness brings no data of its own and loads its built-in tasks from a hub; offline, give it YAML files of yours
with `dataset_path: json` and `TaskManager(include_path=...)`. Scoring is `scorer.score_tokens`, generation the cached
generator. The harness moves blanks at the end of a context to the continuation and encodes both as one text before it
splits them, so its tokens may differ from the scorer's own convention where a context does not end in a word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]
from lm_eval.api.model import TemplateLM  # pyright: ignore[reportMissingImports]

from jobs.evaluation.generation import model_completer
from jobs.evaluation.scorer import score_tokens
from ncp_model import NCPModel
from pipeline.data.tokenizer import Tokenizer


class HarnessModel(TemplateLM):
    """An `lm_eval` language model over an NCPModel and our tokenizer."""

    def __init__(
        self, model: NCPModel, tokenizer: Tokenizer, *, sequence_length: int, batch_tokens: int = 16_384
    ):
        super().__init__()
        self.model, self.tokenizer = model, tokenizer
        self.sequence_length, self.batch_tokens = sequence_length, batch_tokens

    @property
    def eot_token_id(self) -> int:
        return self.tokenizer.eos_id

    @property
    def max_length(self) -> int:
        return self.sequence_length

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        return self.tokenizer.encode(string)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        scores = score_tokens(
            self.model,
            [(context, continuation) for _, context, continuation in requests],
            pad_id=self.tokenizer.eos_id,
            sequence_length=self.sequence_length,
            batch_tokens=self.batch_tokens,
        )
        # The harness has no notion of a skipped request: minus infinity can never be chosen, and shows in every mean.
        return [(-math.inf, False) if one is None else (one.log_probability, one.greedy) for one in scores]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-probability of whole texts, in disjoint windows that share one token, from an EOS."""
        results = []
        for request in requests:
            stream = [self.tokenizer.eos_id, *self.tokenizer.encode(request.args[0])]
            pairs = [
                (stream[start : start + 1], stream[start + 1 : start + 1 + self.sequence_length])
                for start in range(0, len(stream) - 1, self.sequence_length)
            ]
            scored = self._loglikelihood_tokens([(None, list(c), list(t)) for c, t in pairs])
            results.append(math.fsum(value for value, _ in scored))
        return results

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        results = []
        for request in requests:
            context, settings = request.args
            complete = model_completer(
                self.model,
                self.tokenizer,
                sequence_length=self.sequence_length,
                temperature=float(settings.get("temperature") or 0.0) if settings.get("do_sample") else 0.0,
            )
            stops = (
                [settings["until"]] if isinstance(settings.get("until"), str) else settings.get("until") or []
            )
            results.append(complete([context], stops, int(settings.get("max_gen_toks", 256)))[0][0])
        return results
