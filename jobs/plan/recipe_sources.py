"""The sources that a recipe's run reads: what their places hold now, what they were pinned as, and pinning them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from curriculum.schema import Recipe
from jobs.graph import evaluation_sources, tokenizer_sources, used_sources
from jobs.runs.checkpoint_fit import check_model
from jobs.runs.initial_checkpoint import check_load, check_place, initial_names, load_pinned, pin_checkpoint
from pipeline.data.objects import Listings
from pipeline.data.pins import Look, load_pin, look, make_pin
from pipeline.storage import Storage

SHOWN = 5
"""Names of files that are left out, on one line."""


def recipe_sources(recipe: Recipe) -> tuple[str, ...]:
    """Sources whose content the run needs: the stages', the tokenizer's, and the evaluations' own questions."""
    extra = tokenizer_sources(recipe) if recipe.tokenizer.train is not None else ()
    return tuple(sorted({*used_sources(recipe), *extra, *evaluation_sources(recipe)}))


def look_at_sources(storage: Storage, recipe: Recipe) -> dict[str, Look]:
    """Every source as its place is now, compared with its pin. Only reads. Raises SourceError for another content."""
    listings = Listings()
    return {
        name: look(
            storage,
            name,
            recipe.sources[name],
            recipe.runtime.locations.get(name),
            text=holds_text(recipe, name),
            listings=listings,
        )
        for name in recipe_sources(recipe)
    }


def holds_text(recipe: Recipe, source: str) -> bool:
    """Whether a source is read as documents, and not as evaluation questions alone."""
    return source not in evaluation_sources(recipe) or source in used_sources(recipe)


def known_pins(storage: Storage, recipe: Recipe) -> dict[str, str]:
    """Digests of the sources that are pinned already, as they were pinned: nothing is listed. Only reads."""
    pins = {}
    for name in recipe_sources(recipe):
        pin = load_pin(storage, name, recipe.sources[name], recipe.runtime.locations.get(name))
        if pin is not None:
            pins[name] = pin.digest
    for name, location in initial_names(recipe).items():
        checkpoint = load_pinned(storage, name, location)
        if checkpoint is None:
            check_place(name, location, recipe.model)
        else:
            if checkpoint.model is not None:
                check_model(name, checkpoint.model, recipe.model)
            pins[name] = checkpoint.digest
    return pins


def pin_sources(storage: Storage, recipe: Recipe, say: Callable[[str], None]) -> dict[str, str]:
    """Digests of all sources: each is listed and compared with its pin, and pinned if it has none yet.

    Raises SourceError for a source that holds other content than its pin says.
    """
    pins = known_pins(storage, recipe)
    listings = Listings()
    for name in recipe_sources(recipe):
        pins[name] = pin_source(storage, recipe, name, say, listings, told=name in pins)
    for name, location in initial_names(recipe).items():
        checkpoint = pin_checkpoint(storage, name, location)
        for stage_name, stage in recipe.stages.items():
            if stage.init.from_ == name:
                check_load(stage_name, stage.init.load, stage.global_batch_tokens, checkpoint)
        if name not in pins:
            say(f"pinned {name}: {checkpoint.kind}, {checkpoint.digest[:12]}")
            pins[name] = checkpoint.digest
    return pins


def pin_source(
    storage: Storage,
    recipe: Recipe,
    name: str,
    say: Callable[[str], None],
    listings: Listings | None = None,
    *,
    told: bool = False,
) -> str:
    """The digest of one source, pinned or compared. Says what was pinned, and what was left out."""
    spec, location = recipe.sources[name], recipe.runtime.locations.get(name)
    listings = listings or Listings()
    text = holds_text(recipe, name)
    left_out = ()
    if not told:
        left_out = look(storage, name, spec, location, text=text, listings=listings).left_out
    pin = make_pin(storage, name, spec, location, text=text, listings=listings)
    if not told:
        say(f"pinned {name}: {len(pin.files)} files, {pin.size / 1e6:.1f} MB, {pin.digest[:12]}")
    for line in left_out_lines(name, left_out):
        say(line)
    return pin.digest


def left_out_lines(source: str, left_out: Sequence[tuple[str, str]]) -> list[str]:
    """One line a reason, with the first names and the count of all."""
    by_reason: dict[str, list[str]] = {}
    for path, reason in left_out:
        by_reason.setdefault(reason, []).append(path)
    lines = []
    for reason, paths in by_reason.items():
        shown = ", ".join(map(repr, paths[:SHOWN])) + (", ..." if len(paths) > SHOWN else "")
        count = f"{len(paths)} files" if len(paths) > 1 else "1 file"
        lines.append(f"{source}: {count} left out ({reason}): {shown}")
    return lines
