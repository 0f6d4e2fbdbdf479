"""What a cluster is given to run our work: the code, and the settings that go with it. Never data, never credentials.

Its size is checked here, where the biggest files can be named, instead of by a refused request.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from curriculum.errors import RecipeError
from curriculum.load import merged_yaml
from pipeline.dag.versions import COMMIT_VARIABLE, code_commit

PACKAGES = ("curriculum", "jobs", "ncp_model", "pipeline")
MAX_UPLOAD_BYTES = 100 * 1024 * 1024
"""What Ray's job server takes in one request."""
CARRIED_VARIABLES = (
    "AWS_ENDPOINT_URL",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_EC2_METADATA_DISABLED",
    "HF_ENDPOINT",
    "NCP_ASSETS",
    "NCP_STORAGE_PATIENCE",
)
"""Settings of this process that travel. Credentials never do: the nodes have their own."""
RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""What our processes tell Ray, unless the environment says otherwise."""


def carried_environment() -> dict[str, str]:
    """Variables for processes on other machines, which do not inherit this one's."""
    carried = {name: os.environ[name] for name in CARRIED_VARIABLES if name in os.environ}
    carried[COMMIT_VARIABLE] = code_commit()
    return {**{name: os.environ.get(name, value) for name, value in RAY_SETTINGS.items()}, **carried}


@contextlib.contextmanager
def staged_code(recipe: str | None = None) -> Iterator[Path]:
    """A temporary folder with the packages, and the recipe when that is a file. Raises RecipeError as `stage_code`."""
    with tempfile.TemporaryDirectory(prefix="ncp-code-") as folder:
        stage_code(Path(folder), recipe)
        yield Path(folder)


def stage_code(folder: Path, recipe: str | None = None) -> None:
    """Copy the packages into `folder`; a recipe that is a file is written there whole, with what it extends.

    Raises RecipeError naming the biggest files when they are too large to upload.
    """
    root = Path(__file__).parents[2]
    for package in PACKAGES:
        shutil.copytree(root / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    if recipe is not None and shipped_name(recipe) != recipe:
        (folder / shipped_name(recipe)).write_text(merged_yaml(recipe))
    sizes = sorted(
        ((path.stat().st_size, path) for path in folder.rglob("*") if path.is_file()), reverse=True
    )
    total = sum(size for size, _ in sizes)
    if total > MAX_UPLOAD_BYTES:
        biggest = ", ".join(f"{path.relative_to(folder)} ({size / 1e6:.1f} MB)" for size, path in sizes[:5])
        raise RecipeError(
            f"the code is {total / 1e6:.0f} MB, Ray takes {MAX_UPLOAD_BYTES / 1e6:.0f} MB; "
            f"move out the biggest files: {biggest}"
        )


def shipped_name(recipe: str) -> str:
    """RECIPE on the command line where `stage_code` put it: a bundled name is itself, a file lies at the top."""
    return f"./{Path(recipe).name}" if recipe.endswith((".yaml", ".yml")) else recipe
