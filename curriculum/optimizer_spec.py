"""The optimizer's specification: Muon for matrices, AdamW for everything else (NCP spec 7)."""

from __future__ import annotations

from dataclasses import dataclass

from curriculum.errors import RecipeError


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """Hyper-parameters of one stage's optimizer.

    `lr` is the peak learning rate of Muon's matrices and of AdamW alike. It is read as "reading B" of NCP spec 7: a
    Muon step changes a matrix by a root mean square of lr * muon_rms_scale, so 6e-5 here equals Moonlight's
    RMS-matched 0.2 at OLMo's 3e-4. Weight decay is decoupled, and zero on the embedding and on every vector or scalar.
    """

    lr: float
    weight_decay: float = 0.1
    grad_clip: float = 1.0
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    matrices: str = "muon"  # muon | adamw
    muon_momentum: float = 0.95
    muon_rms_scale: float = 1.0
    codebooks: str = "adamw"  # adamw | muon: orthogonalising moves unused codewords as much as used ones

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Raise RecipeError naming the key, the value and the fix."""
        checks = (
            ("lr", self.lr, self.lr > 0, "must be positive"),
            ("weight_decay", self.weight_decay, self.weight_decay >= 0, "must not be negative"),
            ("grad_clip", self.grad_clip, self.grad_clip > 0, "must be positive; use inf for no clipping"),
            (
                "betas",
                self.betas,
                len(self.betas) == 2 and all(0 <= b < 1 for b in self.betas),
                "two numbers in [0, 1)",
            ),
            ("eps", self.eps, self.eps > 0, "must be positive"),
            ("matrices", self.matrices, self.matrices in ("muon", "adamw"), "use muon or adamw"),
            ("muon_momentum", self.muon_momentum, 0 <= self.muon_momentum < 1, "must be in [0, 1)"),
            ("muon_rms_scale", self.muon_rms_scale, self.muon_rms_scale > 0, "must be positive"),
            ("codebooks", self.codebooks, self.codebooks in ("muon", "adamw"), "use adamw or muon"),
        )
        for key, value, valid, fix in checks:
            if not valid:
                raise RecipeError(f"optimizer.{key} = {value!r}: {fix}")
