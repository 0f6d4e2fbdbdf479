"""The optimizer's specification: Muon for matrices, AdamW for everything else (docs/model.md 7)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from curriculum.errors import RecipeError
from curriculum.fields import declared, require_bounds


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """Hyper-parameters of one stage's optimizer.

    `lr` is the peak learning rate of Muon's matrices and of AdamW alike. It is read as "reading B" of docs/model.md 7: a
    Muon step changes a matrix by a root mean square of lr * muon_rms_scale, so 6e-5 here equals Moonlight's
    RMS-matched 0.2 at OLMo's 3e-4. Weight decay is decoupled, and zero on the embedding and on every vector or scalar.
    """

    lr: float = declared(above=0)
    weight_decay: float = declared(0.1, at_least=0)
    grad_clip: float | None = declared(1.0, above=0, fix="use null for no clipping")
    """Largest norm of the whole gradient; null: no clipping."""
    betas: tuple[float, float] = declared((0.9, 0.95), at_least=0, below=1)
    eps: float = declared(1e-8, above=0, below=1)
    matrices: str = "muon"  # muon | adamw
    muon_momentum: float = declared(0.95, at_least=0, below=1)
    muon_rms_scale: float = declared(1.0, above=0)
    codebooks: str = "adamw"  # adamw | muon: orthogonalising moves unused codewords as much as used ones

    def __post_init__(self) -> None:
        self.validate()

    @property
    def clip_norm(self) -> float:
        """`grad_clip` as a number: infinity where nothing is clipped."""
        return math.inf if self.grad_clip is None else self.grad_clip

    def validate(self) -> None:
        """Raise RecipeError naming the key, the value and the fix."""
        require_bounds(self, "optimizer")
        for key, value in (("matrices", self.matrices), ("codebooks", self.codebooks)):
            if value not in ("muon", "adamw"):
                raise RecipeError(f"optimizer.{key} = {value!r}: use muon or adamw")
        if len(self.betas) != 2:
            raise RecipeError(f"optimizer.betas = {self.betas!r}: two numbers in [0, 1)")
        if self.lr * self.weight_decay >= 1:
            raise RecipeError(
                f"optimizer.weight_decay = {self.weight_decay!r}: times lr {self.lr:g} it is 1 or more, which turns every weight "
                "around; lower one of the two"
            )
