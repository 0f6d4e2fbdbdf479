"""A ladder of models for a scaling law, as a recipe's `ladder:` section names it (docs/model.md 13).

Every shape of every family is trained at every compute budget that suits it, each as a run of its own whose recipe is
this one with another model and another number of tokens. Part of no identity: a rung is identified by its own recipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from curriculum.errors import RecipeError
from curriculum.fields import declared

FAMILIES = ("ncp", "vanilla")


@dataclass(frozen=True, kw_only=True)
class LadderShape:
    """One model: head and codeword sizes and the MLP's ratio are those of the recipe's model."""

    hidden_size: int = declared(at_least=2, at_most=1_048_576)
    layers: tuple[int, int, int] = declared(at_least=0, at_most=1_000)
    """Encoder, concept and decoder layers; concept layers are 0 in the vanilla family."""
    lr: float | None = declared(None, above=0)
    """Peak learning rate of this shape; None: the recipe's."""


@dataclass(frozen=True, kw_only=True)
class LadderSpec:
    """Shapes by budgets."""

    budgets: tuple[float, ...] = declared(above=0)
    """Training FLOPs of a run."""
    families: Mapping[str, tuple[LadderShape, ...]]
    """`ncp`: the recipe's model, scaled. `vanilla`: the same without concepts and routes, the baseline."""
    tokens_per_parameter: tuple[float, float] = declared((5.0, 100.0), above=0)
    """Shapes whose budget would buy fewer or more tokens than this per parameter are left out at that budget."""

    def __post_init__(self) -> None:
        for name, shapes in self.families.items():
            if name not in FAMILIES:
                raise RecipeError(f"ladder.families: {name!r} is not one of {', '.join(FAMILIES)}")
            if not shapes:
                raise RecipeError(f"ladder.families.{name}: empty; give at least one shape, or leave it out")
        if not self.budgets:
            raise RecipeError("ladder.budgets: empty; give training FLOPs, as in [1e19, 1e20]")
        if not self.families:
            raise RecipeError(f"ladder.families: empty; give shapes of {' or '.join(FAMILIES)}")
        low, high = self.tokens_per_parameter
        if low > high:
            raise RecipeError(
                f"ladder.tokens_per_parameter: [{low:g}, {high:g}] is not [least, most]; swap them"
            )
        if len(set(self.budgets)) != len(self.budgets):
            raise RecipeError(f"ladder.budgets: {list(self.budgets)} names one twice; leave one out")
