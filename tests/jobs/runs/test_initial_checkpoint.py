"""Starting from a checkpoint outside the run: identity by content, three kinds of load, and refusals that name why."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from curriculum.errors import InputError, RecipeError
from curriculum.load import load_recipe, plain
from curriculum.model_spec import ConceptSpec, CrcSpec, IrcSpec, ModelSpec, NcpSpec, VqSpec
from curriculum.schema import InitSpec
from curriculum.tokens import tokens_before
from jobs import cli
from jobs.boundary import run_command
from jobs.exit_codes import USAGE
from jobs.graph import build_graph
from jobs.runs.checkpoint_fit import WrongCheckpoint
from jobs.runs.initial_checkpoint import (
    InitialCheckpoint,
    check_load,
    check_place,
    initial_names,
    load_pinned,
    pin_checkpoint,
)
from jobs.runs.metric_log import read_metrics
from jobs.training.train_job import TrainJob
from jobs.training.train_loop import train
from jobs.training.transition import describe_transition, transition_banner
from ncp_model import build_model
from ncp_model.hf import load_model, save_pretrained
from pipeline.dag.store import StepStore
from pipeline.storage import Storage
from tests.ncp_process import SMALL, read_checkpoint
from tests.s3_server import s3_environment, s3_server
from tests.staged import stage_prose
from tests.training import SHARDS, SMALL_MODEL, assert_equal, hold, one_rank, small_job

ORIGIN = "steps/origin-0123456789ab"
MARKER = f"{ORIGIN}/milestones/000000004.json"
NCP = SMALL_MODEL
VANILLA = replace(
    NCP,
    concept_layers=0,
    concept=ConceptSpec(enabled=False),
    ncp=NcpSpec(weight=0.0),
    vq=VqSpec(weight=0.0),
    irc=IrcSpec(enabled=False),
    crc=CrcSpec(enabled=False),
)


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with one_rank(tmp_path_factory.mktemp("group")):
        yield


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    """Another storage, with a trajectory of four steps."""
    storage = Storage(str(tmp_path_factory.mktemp("origin")))
    stage_prose(storage, SHARDS)
    storage.write_json(f"{ORIGIN}/identity.json", {"identity": {"model": plain(NCP)}})
    train(_job(storage, ORIGIN, stop=4, tokens_before=10_000))
    return storage


@pytest.fixture
def storage(origin: Storage, tmp_path: Path) -> Storage:
    """The run's own storage: shards and nothing else."""
    shutil.copytree(origin.path(SHARDS), tmp_path / "own" / SHARDS)
    return Storage(str(tmp_path / "own"))


def _job(
    storage: Storage, key: str, *, stop: int, load: str = "weights+optimizer", **changes: Any
) -> TrainJob:
    settings = {"step_key": key, "micro_batch_size": 8, "checkpoint_every_steps": 100, **changes}
    return hold(small_job(storage.url, "", stop=stop, stage_fields={"init": InitSpec(load=load)}, **settings))


def _tensors(storage: Storage, key: str, step: int) -> dict[str, torch.Tensor]:
    marker = StepStore(storage, key).milestone(step)
    assert marker is not None
    return read_checkpoint(storage, marker)


def _started(storage: Storage, initial: InitialCheckpoint, load: str, **changes: Any) -> TrainJob:
    job = _job(storage, "steps/child-0123456789ab", stop=6, load=load, initial=initial, **changes)
    train(job)
    return job


def test_a_milestone_of_another_storage_gives_weights_and_moments_and_a_start_of_its_own(
    storage: Storage, origin: Storage
) -> None:
    initial = pin_checkpoint(storage, "base", origin.uri(MARKER))
    assert (initial.kind, initial.step, initial.tokens_total) == ("milestone", 4, 10_000 + 4 * 512)
    job = _started(storage, initial, "weights+optimizer", tokens_before=initial.tokens_total)
    theirs, ours = _tensors(origin, ORIGIN, 4), _tensors(storage, job.step_key, 0)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    rows = read_metrics(storage, job.step_key)
    assert [row.step for row in rows] == [1, 2, 3, 4, 5, 6]
    assert rows[0].values["tokens_total"] == 10_000 + 5 * 512
    assert "starts from base step 4 (weights+optimizer)" in transition_banner(describe_transition(job, None))


def test_full_goes_on_as_if_nothing_had_been_between(storage: Storage, origin: Storage) -> None:
    """The stage is the origin's own with a longer stop: its rows and bits are those of the origin trained further."""
    initial = pin_checkpoint(storage, "base", origin.uri(MARKER))
    job = _started(storage, initial, "full", tokens_before=10_000)
    assert job.first_step == 4 and describe_transition(job, None)["data_position"] == 4 * 8
    whole = _job(storage, "steps/whole-0123456789ab", stop=6, tokens_before=10_000)
    train(whole)
    ours, theirs = (read_metrics(storage, key.step_key) for key in (job, whole))
    assert [(row.step, row.values) for row in ours] == [(row.step, row.values) for row in theirs[4:]]
    ended, other = _tensors(storage, job.step_key, 6), _tensors(storage, whole.step_key, 6)
    assert [name for name in other if not torch.equal(ended[name], other[name])] == []


@pytest.mark.parametrize("spec", [VANILLA, NCP], ids=["olmo3", "ncp"])
def test_a_folder_of_safetensors_gives_its_weights(spec: ModelSpec, storage: Storage, tmp_path: Path) -> None:
    weights = build_model(spec, seed=3).state_dict()
    save_pretrained(weights, spec, tmp_path / "published")
    initial = pin_checkpoint(storage, "base", str(tmp_path / "published"))
    job = _started(storage, initial, "weights", model=spec)
    ours = _tensors(storage, job.step_key, 0)
    assert all(torch.equal(ours[f"model/{name}"], tensor) for name, tensor in weights.items())


def test_a_checkpoint_on_s3_is_the_same_start(storage: Storage, origin: Storage, tmp_path: Path) -> None:
    """A milestone is read from there by DCP, safetensors are fetched once a node and leave no copy behind."""
    published = tmp_path / "published"
    save_pretrained(build_model(NCP, seed=3).state_dict(), NCP, published)
    (tmp_path / "s3").mkdir()
    with s3_server(tmp_path / "s3") as port, s3_environment(f"http://127.0.0.1:{port}"):
        bucket = Storage("s3://ncp/base")
        for root, folder in ((origin.path(ORIGIN), ORIGIN), (published, "published")):
            for file in Path(root).rglob("*"):
                if file.is_file():
                    bucket.write_bytes(f"{folder}/{file.relative_to(root)}", file.read_bytes())
        for near, far, load, step in (
            (origin.uri(MARKER), bucket.uri(MARKER), "weights+optimizer", 4),
            (str(published), bucket.uri("published"), "weights", 0),
        ):
            here, there = pin_checkpoint(storage, near, near), pin_checkpoint(storage, far, far)
            assert (there.digest, there.step) == (here.digest, step)
            tensors = []
            for initial in (here, there):
                child = f"steps/child-{hashlib.sha256(initial.url.encode()).hexdigest()[:12]}"
                job = _job(storage, child, stop=0, load=load, initial=initial)
                train(job)
                tensors.append(_tensors(storage, job.step_key, 0))
            assert_equal(*tensors)
    assert not list(Path(tempfile.gettempdir()).glob(f"ncp-init-{there.digest[:16]}"))


def test_another_model_is_named_field_by_field(storage: Storage, origin: Storage) -> None:
    initial = pin_checkpoint(storage, "base", origin.uri(MARKER))
    other = replace(NCP, intermediate_size=96, z_loss=0.5)
    with pytest.raises(WrongCheckpoint, match=r"model\.intermediate_size is 64 there and 96 in the recipe$"):
        _started(storage, initial, "weights", model=other)


def test_another_content_in_the_same_place_is_refused(
    storage: Storage, origin: Storage, tmp_path: Path
) -> None:
    shutil.copytree(origin.path(ORIGIN), tmp_path / "copy" / ORIGIN)
    copy = Storage(str(tmp_path / "copy"))
    initial = pin_checkpoint(storage, "base", copy.uri(MARKER))
    copy.write_json(MARKER, {**copy.read_json(MARKER), "run": "someone else's"})
    with pytest.raises(WrongCheckpoint, match="pinned was"):
        _started(storage, initial, "weights")


def test_damaged_safetensors_are_refused(storage: Storage, tmp_path: Path) -> None:
    save_pretrained(build_model(VANILLA, seed=3).state_dict(), VANILLA, tmp_path / "published")
    initial = pin_checkpoint(storage, "base", str(tmp_path / "published"))
    (victim,) = (tmp_path / "published").glob("*.safetensors")
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    with pytest.raises(WrongCheckpoint, match="is not the pinned file any more"):
        _started(storage, initial, "weights", model=VANILLA)


def _recipe(*overrides: str) -> Any:
    return load_recipe(SMALL, ["stage1.init.from=base", *overrides])


def test_the_place_is_no_part_of_the_identity_and_the_content_is(storage: Storage, origin: Storage) -> None:
    recipe = _recipe("runtime.locations.base=/somewhere/else")
    moved = _recipe("runtime.locations.base=s3://bucket/there")
    digest = pin_checkpoint(storage, "base", origin.uri(MARKER)).digest
    pins = {"stdlib-prose": "0" * 64, "base": digest}

    def stage(recipe: Any, pins: dict[str, str]) -> Any:
        return next(step for step in build_graph(recipe, pins) if step.name == "stage1")

    assert stage(recipe, pins).fingerprint == stage(moved, pins).fingerprint
    assert stage(recipe, pins).fingerprint != stage(recipe, {**pins, "base": "1" * 64}).fingerprint
    assert not stage(recipe, {"stdlib-prose": "0" * 64}).known
    assert stage(recipe, pins).needs == ("shards-stdlib-prose",)
    assert stage(recipe, pins).identity["init"] == {"content": digest, "load": "weights+optimizer"}


def test_a_pin_is_kept_and_may_move_with_its_content_but_not_change_it(
    storage: Storage, origin: Storage, tmp_path: Path
) -> None:
    first = pin_checkpoint(storage, "base", origin.uri(MARKER))
    shutil.copytree(origin.path(ORIGIN), tmp_path / "copy" / ORIGIN)
    copy = Storage(str(tmp_path / "copy"))
    moved = load_pinned(storage, "base", copy.uri(MARKER))
    assert moved is not None and moved.url == copy.url and moved.digest == first.digest
    with pytest.raises(RecipeError, match=r"runtime\.locations\.base: .* holds another checkpoint"):
        load_pinned(storage, "base", copy.uri(f"{ORIGIN}/milestones/000000000.json"))


@pytest.mark.parametrize("place", ["/nowhere/at/all", "/nowhere/steps/s-0/milestones/000000004.json"])
def test_a_place_with_nothing_in_it_is_named(place: str, storage: Storage) -> None:
    with pytest.raises(RecipeError, match=r"init\.from base: .*nowhere"):
        pin_checkpoint(storage, "base", place)


def test_what_a_checkpoint_does_not_hold_is_refused_before_anything_runs() -> None:
    folder = InitialCheckpoint(name="base", kind="safetensors", digest="0", url="/w")
    with pytest.raises(RecipeError, match=r"stages\.stage1\.init\.load: .* holds weights alone; use weights"):
        check_load("stage1", "weights+optimizer", 512, folder)
    milestone = InitialCheckpoint(
        name="base", kind="milestone", digest="0", url="/w", step=9, global_batch_tokens=1024
    )
    with pytest.raises(RecipeError, match=r"global_batch_tokens is 512; make them equal"):
        check_load("stage1", "full", 512, milestone)
    check_load("stage1", "weights", 512, milestone)


def test_a_recipe_names_where_a_checkpoint_lies_or_is_told_to() -> None:
    assert initial_names(_recipe("runtime.locations.base=/there")) == {"base": "/there"}
    assert initial_names(load_recipe(SMALL, ["stage1.init.from=/data/olmo3"])) == {
        "/data/olmo3": "/data/olmo3"
    }
    with pytest.raises(RecipeError, match=r"stages\.stage1\.init\.from: 'base'.*runtime\.locations\.base"):
        _recipe()


def test_full_counts_its_parents_tokens_as_its_own() -> None:
    two = str(Path(SMALL).parent / "faults" / "two_stages.yaml")
    anew = load_recipe(two)
    assert tokens_before(anew, "stage2") == 20 * 512
    on = load_recipe(two, ["stage2.init.load=full", "stage2.tokens=20480"])
    assert tokens_before(on, "stage2") == 0
    with pytest.raises(
        RecipeError, match=r"stages\.stage2\.init\.load: full counts stage1's 10240 tokens too"
    ):
        load_recipe(two, ["stage2.init.load=full"])
    with pytest.raises(RecipeError, match=r"must be its 512; it is 1024"):
        load_recipe(two, ["stage2.init.load=full", "stage2.global_batch_tokens=1024"])


def _rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    file = sorted(folder.glob("*.safetensors"))[0]
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def _edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))


def _cast(dtype: torch.dtype) -> Callable[[Path], None]:
    return lambda folder: _rewrite(folder, lambda t: t.update({FIRST: t[FIRST].to(dtype)}))


FIRST = "embed_tokens.weight"
INDEX = "model.safetensors.index.json"
SHARDS_OF = "model-00001-of-"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing shard": (
        lambda f: sorted(f.glob("*.safetensors"))[1].unlink(),
        r"names model-00002-of-\d+.*no such file",
    ),
    "cut shard": (
        lambda f: os.truncate(sorted(f.glob("*.safetensors"))[0], 100_000),
        rf"{SHARDS_OF}\d+.safetensors: has 100,000 bytes, its header says",
    ),
    "empty shard": (lambda f: os.truncate(sorted(f.glob("*.safetensors"))[0], 0), rf"{SHARDS_OF}.*no whole"),
    "grown shard": (
        lambda f: os.truncate(sorted(f.glob("*.safetensors"))[0], 9_000_000),
        rf"{SHARDS_OF}.*cut or added",
    ),
    "lfs pointer": (
        lambda f: sorted(f.glob("*.safetensors"))[0].write_bytes(POINTER),
        rf"{SHARDS_OF}\d+.safetensors: is a Git LFS pointer.*git lfs pull",
    ),
    "lfs config": (lambda f: (f / "config.json").write_bytes(POINTER), "config.json: is a Git LFS pointer"),
    "lfs index": (lambda f: (f / INDEX).write_bytes(POINTER), "index.json: is a Git LFS pointer"),
    "html page": (
        lambda f: sorted(f.glob("*.safetensors"))[0].write_bytes(b"<!DOCTYPE html>" * 99),
        SHARDS_OF,
    ),
    "no weight_map": (
        lambda f: _edit(f / INDEX, lambda i: i.pop("weight_map")),
        "index.json: has no weight_map",
    ),
    "empty weight_map": (
        lambda f: _edit(f / INDEX, lambda i: i.update(weight_map={})),
        "index.json: has no weight_map",
    ),
    "a way out": (
        lambda f: _edit(f / INDEX, lambda i: i["weight_map"].update({FIRST: "../x.safetensors"})),
        "weight_map.embed_tokens.weight = '../x.safetensors'",
    ),
    "index of elsewhere": (
        lambda f: _edit(
            f / INDEX, lambda i: i["weight_map"].update({FIRST: "model-00002-of-00003.safetensors"})
        ),
        "embed_tokens.weight is in model-00001",
    ),
    "fp8": (_cast(torch.float8_e4m3fn), "embed_tokens.weight has dtype F8_E4M3: convert"),
    "int8": (_cast(torch.int8), "embed_tokens.weight has dtype I8: convert"),
    "float64": (_cast(torch.float64), "embed_tokens.weight has dtype F64: convert"),
    "wrong shape": (
        lambda f: _rewrite(f, lambda t: t.update({FIRST: torch.zeros(512, 31)})),
        r"embed_tokens.weight has shape \(512, 31\), the model needs \(512, 32\)",
    ),
    "a tensor twice": (
        lambda f: (
            save_file({FIRST: torch.zeros(2)}, sorted(f.glob("*.safetensors"))[0].with_name("zz.safetensors"))
            or _edit(f / INDEX, lambda i: i["weight_map"].update({"other": "zz.safetensors"}))
        ),
        "embed_tokens.weight is in model-00001.* and in zz",
    ),
    "tied": (
        lambda f: _edit(f / "config.json", lambda c: c.update(tie_word_embeddings=True)),
        "tie_word_embeddings = True",
    ),
    "unknown field": (
        lambda f: _edit(f / "config.json", lambda c: c.update(window_bonus=3)),
        "window_bonus = 3",
    ),
    "null size": (
        lambda f: _edit(f / "config.json", lambda c: c.update(hidden_size=None)),
        "hidden_size = None",
    ),
}
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that somebody else wrote: three shards, an index, and a config.json without our specification."""
    folder = tmp_path_factory.mktemp("published")
    save_pretrained(build_model(NCP, seed=1).state_dict(), NCP, folder, shard_bytes=140_000)
    _edit(folder / "config.json", lambda config: config.pop("ncp_model_spec"))
    return folder


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_folder_that_cannot_be_loaded_is_refused_by_name_before_it_is_pinned(
    damage: str, published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, message = DAMAGES[damage]
    folder = tmp_path / "damaged"
    shutil.copytree(published, folder)
    change(folder)
    own = Storage(str(tmp_path / "own"))
    for refused in (
        lambda: pin_checkpoint(own, "base", str(folder)),
        lambda: check_place("base", str(folder), NCP),
    ):
        with pytest.raises(RecipeError, match=message) as caught:
            refused()
        assert str(caught.value).startswith("init.from base: ") and "\n" not in str(caught.value)
    assert own.keys("") == []
    with pytest.raises(InputError, match=message):  # the same words when a folder is loaded without a run
        load_model(folder)
    (folder / "tokenizer.json").write_text("{}")
    assert run_command(cli.app, ["generate", str(folder), "--prompt", "x"]) == USAGE
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and re.search(message, said), said


@pytest.mark.parametrize("tokenizer", ["", "{", "{}", '{"model": {"type": "Unigram"}}', "\0" * 100])
def test_a_folder_with_a_damaged_tokenizer_is_named(
    tokenizer: str, published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(published, folder)
    (folder / "tokenizer.json").write_text(tokenizer)
    assert run_command(cli.app, ["generate", str(folder), "--prompt", "x"]) == USAGE
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and "tokenizer.json" in said, said


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_the_same_numbers_in_single(dtype: torch.dtype, tmp_path: Path) -> None:
    weights = build_model(NCP, seed=1).state_dict()
    save_pretrained(weights, NCP, tmp_path, dtype=dtype)
    check_place("base", str(tmp_path), NCP)
    loaded = load_model(tmp_path).state_dict()
    assert_equal(loaded, {name: tensor.to(dtype).float() for name, tensor in weights.items()})


def test_a_folder_of_another_model_is_refused_while_it_is_planned(published: Path, tmp_path: Path) -> None:
    place = str(published)
    theirs = pin_checkpoint(Storage(str(tmp_path)), "base", place).model
    with pytest.raises(
        WrongCheckpoint, match=r"model.window_includes_self is False there and True in the recipe"
    ):
        check_place("base", place, NCP)
    check_place("base", place, ModelSpec.from_dict(theirs or {}))
    with pytest.raises(WrongCheckpoint, match=r"model.hidden_size is 32 there and 64"):
        check_place("base", place, replace(ModelSpec.from_dict(theirs or {}), hidden_size=64))
