"""A ladder of models for a scaling law, as a recipe's `ladder:` section names it (NCP spec 13).

Every shape of every family is trained at every compute budget that suits it, each as a run of its own whose recipe is
this one with another model and another number of tokens. Part of no identity: a rung is identified by its own recipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from curriculum.errors import RecipeError

FAMILIES = ("ncp", "vanilla")


@dataclass(frozen=True, kw_only=True)
class LadderShape:
    """One model: head and codeword sizes and the MLP's ratio are those of the recipe's model."""

    hidden_size: int
    layers: tuple[int, int, int]
    """Encoder, concept and decoder layers; concept layers are 0 in the vanilla family."""
    lr: float | None = None
    """Peak learning rate of this shape; None: the recipe's."""


@dataclass(frozen=True, kw_only=True)
class LadderSpec:
    """Shapes by budgets."""

    budgets: tuple[float, ...]
    """Training FLOPs of a run."""
    families: Mapping[str, tuple[LadderShape, ...]]
    """`ncp`: the recipe's model, scaled. `vanilla`: the same without concepts and routes, the baseline."""
    tokens_per_parameter: tuple[float, float] = (5.0, 100.0)
    """Shapes whose budget would buy fewer or more tokens than this per parameter are left out at that budget."""

    def __post_init__(self) -> None:
        for name, shapes in self.families.items():
            if name not in FAMILIES:
                raise RecipeError(f"ladder.families: {name!r} is not one of {', '.join(FAMILIES)}")
            if not shapes:
                raise RecipeError(f"ladder.families.{name}: empty; give at least one shape, or leave it out")
        if not self.budgets or min(self.budgets) <= 0:
            raise RecipeError(
                f"ladder.budgets: {list(self.budgets)} are not positive FLOPs; give [1e19, 1e20]"
            )
        if len(set(self.budgets)) != len(self.budgets):
            raise RecipeError(f"ladder.budgets: {list(self.budgets)} names one twice; leave one out")
