"""Questions of one's own: a directory, a bucket or a dataset repository of the HF Hub in the published package's layout.

It is a source like any other: pinned once, so that its content is identity and its place is not. What is pinned is copied
into the asset cache, every file checked against the pin on the way, and read there by the same loader as the package.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from curriculum.schema import EvaluationSpec, Recipe, SourceSpec
from jobs.assets import assets_directory
from jobs.evaluation.job import EvaluationData
from pipeline.data.errors import SourceError
from pipeline.data.pins import load_pin
from pipeline.data.verified import open_verified
from pipeline.storage import Storage

GLOBS = ("oe_eval_tasks/**/*.jsonl.gz", "oe_eval_tasks/**/config.json", "hf_datasets/**/*.arrow")
"""What belongs to a source of questions given by its place alone."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def fetch_evaluation_data(storage: Storage, data: EvaluationData) -> Path:
    """The folder that holds the pinned questions on this machine, copied first if need be.

    Raises SourceError when it is not pinned here, and ChangedSincePinned when a file is no longer what was pinned.
    """
    final = assets_directory() / f"{data.source}-{data.digest[:12]}"
    if final.exists():
        return final
    pin = load_pin(storage, data.source, data.spec, data.location, data.digest)
    if pin is None:
        raise SourceError(
            f"evaluation.data: source {data.source!r} has no pin with digest {data.digest[:12]}; run again"
        )
    final.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".tmp-{data.source}-", dir=final.parent))
    root = pin.open_root(storage)
    try:
        for file in pin.files:
            target = work / "data" / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            with open_verified(root, file) as source, open(target, "wb") as copy:
                shutil.copyfileobj(source, copy)
        try:
            os.rename(work / "data", final)
        except OSError:
            if not final.exists():  # another process was faster, and its folder is the same by its digest
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return final


def is_hub_id(location: str) -> bool:
    """Whether `location` names a dataset repository of the HF Hub: `org/name`, and no directory here has that name."""
    return _HUB_ID.fullmatch(location) is not None and not Path(location).exists()


def questions_from(
    recipe: Recipe, evaluation: EvaluationSpec, location: str
) -> tuple[Recipe, EvaluationSpec]:
    """The recipe and evaluation with questions from `location`: a directory, a URL, or a Hub id `org/name`."""
    if is_hub_id(location):
        location = f"hf://datasets/{location}"
    place = str(Path(location).resolve()) if "://" not in location else location
    name = f"questions-{hashlib.sha256(place.encode()).hexdigest()[:8]}"
    runtime = replace(recipe.runtime, locations={**recipe.runtime.locations, name: place})
    sources = {**recipe.sources, name: SourceSpec(globs=GLOBS)}
    return replace(recipe, sources=sources, runtime=runtime), replace(evaluation, data=name)
