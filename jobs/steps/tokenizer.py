"""The `tokenizer` step: train a byte-level BPE on the sources, or copy a published one and check its hash."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from curriculum.schema import DataSpec, Recipe, TokenizerTraining
from jobs.cluster.ray_session import call_remote
from jobs.graph import TOKENIZER, tokenizer_sources
from jobs.runs.checkpoint_files import read_tokenizer_file
from jobs.tokenizer_source import published_tokenizer
from pipeline.dag.runner import StepContext
from pipeline.dag.store import StepStore
from pipeline.data.errors import SourceError
from pipeline.data.pins import Pin, load_pin
from pipeline.storage import Storage


def execute(recipe: Recipe, context: StepContext) -> dict[str, Any]:
    """Writes `tokenizer.json` under the attempt's own key. Raises ValueError for a source without text."""
    key = f"{context.step.key}/attempts/{context.attempt:06d}/tokenizer.json"
    if recipe.tokenizer.train is not None:
        contents = context.step.identity["sources"]
        pins = [
            pinned(recipe, context.storage, source, contents[source]) for source in tokenizer_sources(recipe)
        ]
        return call_remote(
            _train,
            context.storage.url,
            key,
            pins,
            recipe.tokenizer.train,
            recipe.data,
            {source: recipe.sources[source].text_key for source in contents},
            num_cpus=recipe.runtime.staging_cpus_per_task,
            context=context,
        )
    return _copy_published(recipe, context.storage, key)


def tokenizer_key(context: StepContext) -> str:
    """Storage key of the run's tokenizer file, for the steps that need it. Raises DamagedRecord when it is not what was written."""
    receipt = StepStore(context.storage, context.steps[TOKENIZER].key).receipt()
    if receipt is None:
        raise RuntimeError("the tokenizer step has no receipt; it must be done before this step")
    read_tokenizer_file(context.storage, receipt["tokenizer"], receipt.get("sha256", ""))
    return receipt["tokenizer"]


def pinned(recipe: Recipe, storage: Storage, source: str, content: str) -> Pin:
    """The pin that the step was planned with, by its digest, whether or not the source was renewed meanwhile."""
    pin = load_pin(storage, source, recipe.sources[source], recipe.runtime.locations.get(source), content)
    if pin is None:
        raise RuntimeError(f"source {source}: its pin has vanished from {storage.url}")
    return pin


def _train(
    storage_url: str,
    key: str,
    pins: list[Pin],
    spec: TokenizerTraining,
    data_spec: DataSpec,
    text_keys: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    from pipeline.data.tokenizer import Tokenizer, train_bpe  # brings tokenizers

    storage = Storage(storage_url)
    texts = (
        text
        for pin in pins
        for text in _texts(
            storage, pin, data_spec, spec.max_bytes_per_source, text_keys.get(pin.source, "text")
        )
    )
    data = train_bpe(texts, spec.vocab_size)
    storage.write_bytes(key, data)
    tokenizer = Tokenizer.from_bytes(data)
    return {
        "tokenizer": key,
        "sha256": tokenizer.sha256,
        "vocab_size": tokenizer.vocab_size,
        "vocab_size_asked": spec.vocab_size,
    }


def _texts(storage: Storage, pin: Pin, data_spec: DataSpec, max_bytes: int, text_key: str) -> Iterator[str]:
    """The first texts of one source. Raises SourceError naming it when it has none."""
    from pipeline.data.training_text import training_texts  # brings pyarrow

    found = False
    for text in training_texts(storage, pin, data_spec, max_bytes, text_key):
        found = True
        yield text
    if not found:
        raise SourceError(
            f"sources.{pin.source}: no document with any text in {pin.location}; check runtime.locations.{pin.source}"
        )


def _copy_published(recipe: Recipe, storage: Storage, key: str) -> dict[str, Any]:

    tokenizer = published_tokenizer(recipe)
    tokenizer.save(storage, key)
    return {"tokenizer": key, "sha256": tokenizer.sha256, "vocab_size": tokenizer.vocab_size}
