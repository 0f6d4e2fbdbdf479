"""Environments of the field's own evaluators, made once: their pins clash with ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PACKAGES = {
    "olmo_eval": ["torch==2.13.0", "numpy<3", "safetensors", "omegaconf", "ai2-olmo-eval==0.9.0"],
    "lm_eval": [
        "torch==2.13.0",
        "safetensors",
        "omegaconf",
        "pyarrow",
        "lm-eval==0.4.13",
        "transformers>=5",
        "accelerate",
    ],
}


def peer_python(peer: str, folder: Path) -> Path:
    """The interpreter of `folder/peer`, which is made and filled if it is not there."""
    environment = folder / peer
    python = environment / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        for packages in (
            PACKAGES[peer][:1],
            PACKAGES[peer],
        ):  # torch first, so that nothing pulls a CUDA build
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
    return python
