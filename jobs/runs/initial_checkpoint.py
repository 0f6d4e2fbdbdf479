"""Checkpoints from outside the run that a stage starts from: what they are, pinned once, and the proof when they are read.

`init: {from: NAME}` names one, `runtime.locations.NAME` says where it lies (or `from` is a place itself):

    s3://bucket/ncp/steps/stage1-0123456789ab/milestones/000000400.json    a milestone, by its marker
    /data/ncp-store#RUN, ...#RUN/STAGE, ...#RUN/STAGE@STEP                 a milestone, as `ncp export` names it
    /data/olmo3-7b, s3://bucket/olmo3-7b                                   a folder of safetensors with config.json

Its identity is its content: the sha256 of the marker, or of the safetensors files. Like a source's pin it is resolved
before planning and kept; where it lies is runtime, and another content in its place is refused when it is read. No
torch here: the driver pins, `jobs.training.load_initial` reads.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass
from typing import Any

from curriculum.errors import RecipeError
from curriculum.model_spec import ModelSpec
from curriculum.schema import Recipe
from jobs.runs.checkpoint_fit import check_model, model_of_folder
from jobs.runs.checkpoint_ref import find_checkpoint
from pipeline.dag.store import StepStore
from pipeline.data.objects import list_objects
from pipeline.data.pins import content_digest
from pipeline.data.verified import hash_object
from pipeline.storage import Storage, StorageError

FORMAT = 1
_MARKER = re.compile(r"(?P<storage>.+)/(?P<step_key>steps/[^/]+)/milestones/(?P<step>\d{9})\.json")


@dataclass(frozen=True, kw_only=True)
class InitialCheckpoint:
    """A checkpoint from outside, exactly."""

    name: str
    kind: str
    """`milestone` or `safetensors`."""
    digest: str
    url: str
    """Root of the storage that holds the milestone, or the folder of the safetensors."""
    step_key: str = ""
    step: int = 0
    tokens_in_stage: int = 0
    tokens_total: int = 0
    global_batch_tokens: int = 0
    files: tuple[tuple[str, int, str], ...] = ()
    """(path, size, sha256) of the safetensors."""
    model: dict[str, Any] | None = None
    """The model it is of, as the recipe would say it; None where no record tells (a pin of an older version)."""


def initial_names(recipe: Recipe) -> dict[str, str]:
    """Names in `init.from` that are no stage -> where each lies."""
    names = {stage.init.from_ for stage in recipe.stages.values()} - {None, *recipe.stages}
    return {name: recipe.runtime.locations.get(name, name) for name in sorted(filter(None, names))}


def load_pinned(storage: Storage, name: str, location: str) -> InitialCheckpoint | None:
    """The checkpoint as it was pinned, at `location`; None when it never was."""
    key = initial_pin_key(name)
    if not storage.exists(key):
        return None
    record = storage.read_json(key)
    if record["format"] != FORMAT:
        raise RecipeError(f"init.from: {storage.uri(key)} has format {record['format']!r}, not {FORMAT}")
    values = record["checkpoint"]
    values["files"] = tuple(tuple(file) for file in values["files"])
    pinned = InitialCheckpoint(**values)
    if location == record["requested"]:
        return pinned
    moved = resolve_checkpoint(name, location)
    if moved.digest != pinned.digest:
        raise RecipeError(
            f"runtime.locations.{name}: {location!r} holds another checkpoint ({moved.digest[:12]}) than {name} was "
            f"pinned to ({pinned.digest[:12]}); give the new one a name of its own"
        )
    return moved


def check_place(name: str, location: str, model: ModelSpec) -> None:
    """Raise RecipeError, or WrongCheckpoint, for a place that a run could not start from. Reads records and headers, no
    weights: what a plan can say of a checkpoint that is not pinned yet."""
    if "#" not in location and not _MARKER.fullmatch(location):
        root = Storage(location)
        if root.exists("config.json"):
            check_model(name, model_of_folder(name, root), model)
            return
    found = resolve_checkpoint(name, location)
    if found.model is not None:
        check_model(name, found.model, model)


def pin_checkpoint(storage: Storage, name: str, location: str) -> InitialCheckpoint:
    """Resolve a checkpoint and keep the result; the kept one if there is one already."""
    found = load_pinned(storage, name, location)
    if found is not None:
        return found
    resolved = resolve_checkpoint(name, location)
    storage.create_json(
        initial_pin_key(name), {"format": FORMAT, "requested": location, "checkpoint": asdict(resolved)}
    )
    kept = load_pinned(storage, name, location)
    assert kept is not None
    return kept


def resolve_checkpoint(name: str, location: str) -> InitialCheckpoint:
    """What lies at `location` now. Raises RecipeError naming the place and the forms it may have."""
    try:
        if "#" in location:
            return _resolve_reference(name, location)
        match = _MARKER.fullmatch(location)
        if match:
            root = Storage(match["storage"])
            return _milestone(name, root, match["step_key"], int(match["step"]))
        return _resolve_folder(name, Storage(location))
    except (FileNotFoundError, StorageError) as error:
        raise RecipeError(f"init.from {name}: nothing at {location!r} ({error})") from error


def _resolve_reference(name: str, location: str) -> InitialCheckpoint:
    url, _, reference = location.partition("#")
    root = Storage(url)
    found = find_checkpoint(root, reference)
    return _milestone(name, root, found.step_key, found.step)


def _milestone(name: str, root: Storage, step_key: str, step: int) -> InitialCheckpoint:
    key = f"{step_key}/milestones/{step:09d}.json"
    data, marker = root.read_bytes(key), root.read_json(key)
    tokens = marker["tokens_in_stage"]
    identity = StepStore(root, step_key).identity()
    return InitialCheckpoint(
        name=name,
        kind="milestone",
        digest=hashlib.sha256(data).hexdigest(),
        url=root.url,
        step_key=step_key,
        step=step,
        tokens_in_stage=tokens,
        tokens_total=marker["tokens_total"],
        global_batch_tokens=tokens // step if step else 0,
        model=None if identity is None else identity["identity"]["model"],
    )


def _resolve_folder(name: str, root: Storage) -> InitialCheckpoint:
    paths = sorted(path for path in list_objects(root) if path.endswith(".safetensors") and "/" not in path)
    if not paths or not root.exists("config.json"):
        raise RecipeError(
            f"init.from {name}: {root.url!r} is neither a folder with config.json and *.safetensors, nor the marker of "
            "a milestone (STORAGE/steps/STEP/milestones/N.json), nor STORAGE#RUN/STAGE@STEP"
        )
    model = model_of_folder(name, root)
    files = tuple((path, *hash_object(root, path)) for path in paths)
    return InitialCheckpoint(
        name=name,
        kind="safetensors",
        digest=content_digest(list(files)),
        url=root.url,
        files=files,
        model=model,
    )


def check_load(stage: str, load: str, global_batch_tokens: int, checkpoint: InitialCheckpoint) -> None:
    """Raise RecipeError when the stage asks for what the checkpoint does not hold."""
    key = f"stages.{stage}.init.load"
    if checkpoint.kind == "safetensors" and load != "weights":
        raise RecipeError(
            f"{key}: {load!r}, but {checkpoint.name} is a folder of safetensors, which holds weights alone; use weights"
        )
    batch = checkpoint.global_batch_tokens
    if load == "full" and batch and batch != global_batch_tokens:
        raise RecipeError(
            f"{key}: full goes on at the checkpoint's step {checkpoint.step:,}, which had {batch:,} tokens a batch, and "
            f"stages.{stage}.global_batch_tokens is {global_batch_tokens:,}; make them equal or use weights+optimizer"
        )


def initial_pin_key(name: str) -> str:
    """Storage key of the pin of a checkpoint from outside the run."""
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[-40:].strip("-")
    return f"pins/init-{readable}-{hashlib.sha256(name.encode()).hexdigest()[:12]}.json"


def initial_record(checkpoint: InitialCheckpoint) -> dict[str, Any]:
    """What a run's lineage says of it: no place."""
    return {
        "name": checkpoint.name,
        "kind": checkpoint.kind,
        "digest": checkpoint.digest,
        "step": checkpoint.step,
    }
