"""The NCP network and its mathematics.

Names are resolved lazily, so that `ncp_model.flops` and `ModelSpec` are usable by a driver that never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from curriculum.model_spec import ModelSpec

_LAZY = {
    "build_model": "ncp_model.model",
    "NCPModel": "ncp_model.model",
    "ModelOutput": "ncp_model.output",
    "LossDenominators": "ncp_model.losses",
    "loss_counts": "ncp_model.losses",
}

__all__ = ["LossDenominators", "ModelOutput", "ModelSpec", "NCPModel", "build_model", "loss_counts"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'ncp_model' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
