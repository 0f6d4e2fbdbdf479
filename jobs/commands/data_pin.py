"""`ncp data pin`: a source compared with its pin, or its content of now taken as the source."""

from __future__ import annotations

from typing import Annotated

import typer

from curriculum.errors import RecipeError, nearest
from curriculum.load import load_recipe
from curriculum.schema import SourceSpec
from jobs.commands.options import DEFAULT_STORAGE, StorageOption
from jobs.plan.recipe_sources import holds_text, recipe_sources
from jobs.runs.garbage import starting
from jobs.show.source_lines import source_lines
from jobs.show.terminal import say
from pipeline.data.pins import kept_selection, look, make_pin, renew_pin
from pipeline.storage import Storage


def pin(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Name of a source.")],
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE]", help="Recipe that declares it; needed only where its pin does not say enough."
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides of the recipe.")
    ] = None,
    renew: Annotated[
        bool,
        typer.Option("--renew", help="Take what its place holds now; the pin before stays for its runs."),
    ] = False,
    location: Annotated[
        str | None, typer.Option(help="Place to take it from; by default the one it was pinned at.")
    ] = None,
    storage: StorageOption = DEFAULT_STORAGE,
) -> None:
    """List a source again and compare it with its pin; --renew takes the new content. Example: ncp data pin web --renew"""
    opened = Storage(storage)
    spec, place, text = _selection(opened, source, recipe, overrides or [])
    place = location or place
    with starting(opened, say):
        if not renew:
            make_pin(opened, source, spec, place, text=text)
        else:
            renewed, before = renew_pin(opened, source, spec, place, text=text)
            if before is None:
                say(
                    f"{source}: pinned as {renewed.digest[:12]}; nothing was pinned before, or it was the same"
                )
            else:
                say(
                    f"{source}: renewed from {before[:12]} to {renewed.digest[:12]}; plans and runs use the new content from "
                    "now on, what was made from the old stays"
                )
        for line in source_lines({source: look(opened, source, spec, place, text=text)}):
            say(line)


def _selection(
    storage: Storage, source: str, recipe: str | None, overrides: list[str]
) -> tuple[SourceSpec, str | None, bool]:
    """What the source selects, where it lies, and whether it is text: from the recipe, else from its kept pin."""
    if recipe is None:
        return kept_selection(storage, source)
    loaded = load_recipe(recipe, overrides)
    if source not in loaded.sources:
        raise RecipeError(f"data pin: no source {source!r} in {recipe}; {nearest(source, loaded.sources)}")
    text = holds_text(loaded, source) if source in recipe_sources(loaded) else True
    return loaded.sources[source], loaded.runtime.locations.get(source), text
