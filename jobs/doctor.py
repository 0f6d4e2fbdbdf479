"""`ncp doctor`: is everything there that a run needs, and how to get what is not.

Each check says what it found. `needed` ones decide the exit code; the others only limit what can be done.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from jobs.assets import list_assets
from jobs.cluster.errors import ClusterUnavailable
from jobs.cluster.ray_jobs import job_client
from jobs.training.wandb_mode import wandb_mode
from pipeline.redaction import redact
from pipeline.storage import Storage, StorageError

ROOT = Path(__file__).parent.parent
PYTHON = (3, 11)
DISK_BYTES = 5_000_000_000
MEMORY_BYTES = 4_000_000_000
SHARED_MEMORY_BYTES = 300_000_000
"""Ray's object store lies there; the demo's is 256 MiB."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)")


@dataclass(frozen=True, kw_only=True)
class Check:
    """One finding."""

    name: str
    ok: bool
    needed: bool
    found: str
    fix: str = ""
    """How to get it, when it is not there."""


def examine(storage: str, address: str | None) -> list[Check]:
    """All checks. Starts no Ray, and leaves nothing behind in `storage`."""
    checks: list[Callable[[], list[Check]]] = [
        _python,
        _packages,
        lambda: [_ray(address)],
        lambda: [_storage(storage)],
        lambda: [_disk(storage)],
        _memory,
        lambda: [_gpus(), _browser(), _wandb()],
        _assets,
    ]
    return [check for group in checks for check in group()]


def _python() -> list[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    wanted = ".".join(map(str, PYTHON))
    ok = sys.version_info[:2] >= PYTHON
    return [Check(name="python", ok=ok, needed=True, found=version, fix=f"install Python {wanted} or newer")]


def _packages() -> list[Check]:
    """Every dependency is installed; versions that differ from constraints.txt are told, and are no error."""
    constraints = read_constraints(ROOT / "constraints.txt")
    missing, other = [], []
    names = dependencies()
    for name in names:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
            continue
        tested = constraints.get(normalised(name))
        if tested is not None and version.partition("+")[0] != tested.partition("+")[0]:
            other.append(f"{name} {version} (tested with {tested})")
    fix = f"{Path(sys.executable).name} -m pip install {' '.join(missing)}"
    return [
        Check(
            name="packages",
            ok=not missing,
            needed=True,
            found=f"missing: {', '.join(missing)}" if missing else f"all {len(names)} are installed",
            fix=fix,
        ),
        Check(
            name="versions",
            ok=not other,
            needed=False,
            found=", ".join(other)
            if other
            else "as tested (constraints.txt)"
            if constraints
            else "not known",
            fix="pip install --constraint constraints.txt --editable .; other versions may change bits",
        ),
    ]


def dependencies() -> list[str]:
    """Names of the packages that ncp needs, from the checkout or from its installed metadata."""
    project = ROOT / "pyproject.toml"
    if project.is_file():
        wanted = tomllib.loads(project.read_text())["project"]["dependencies"]
    else:
        wanted = [line for line in metadata.requires("ncp") or [] if "extra ==" not in line]
    return [match.group(1) for line in wanted if (match := _REQUIREMENT.match(line))]


def read_constraints(path: Path) -> dict[str, str]:
    """Package -> exact version; empty without the file."""
    if not path.is_file():
        return {}
    lines = [line.partition("#")[0].strip() for line in path.read_text().splitlines()]
    pairs = [line.partition("==") for line in lines if "==" in line]
    return {normalised(name.strip()): version.strip() for name, _, version in pairs}


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _ray(address: str | None) -> Check:
    if address is None:
        where = os.environ.get("RAY_ADDRESS")
        found = f"RAY_ADDRESS is {where}" if where else "none named; ncp run starts a local one"
        return Check(name="ray cluster", ok=True, needed=False, found=redact(found))

    try:
        version = job_client(address).get_version()
    except ClusterUnavailable as error:
        return Check(
            name="ray cluster",
            ok=False,
            needed=True,
            found=redact(str(error)),
            fix="start it (ray start --head), check the address, set RAY_AUTH_MODE=token and its token",
        )
    return Check(name="ray cluster", ok=True, needed=True, found=f"{address} answers, version {version}")


def _storage(url: str) -> Check:
    fix = "choose a writable directory, or an S3 server that honours If-None-Match and credentials for it"
    try:
        storage = Storage(url)
        if storage.local and not os.path.exists(storage.root):
            parent = next(path for path in Path(storage.root).parents if path.is_dir())
            with tempfile.TemporaryDirectory(prefix=".ncp-doctor-", dir=parent) as scratch:
                Storage(scratch).probe()
            return Check(name="storage", ok=True, needed=True, found=f"{storage.url} can be made")
        storage.probe()
        storage.delete_tree(".probe")
    except (StorageError, OSError) as error:
        return Check(name="storage", ok=False, needed=True, found=redact(str(error)), fix=fix)
    return Check(
        name="storage", ok=True, needed=True, found=f"{storage.url} is writable, with exclusive puts"
    )


def _disk(url: str) -> Check:
    """Free space where the storage lies, or for temporary files when it is remote."""
    place = Path(tempfile.gettempdir()) if "://" in url else Path(url).absolute()
    while not place.is_dir():
        place = place.parent
    free = shutil.disk_usage(place).free
    return Check(
        name="disk",
        ok=free >= DISK_BYTES,
        needed=True,
        found=f"{free / 1e9:.1f} GB free at {place}",
        fix=f"free {DISK_BYTES / 1e9:.0f} GB, or choose another --storage; see also ncp gc",
    )


def _memory() -> list[Check]:
    available = _meminfo().get("MemAvailable", 0)
    shared = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0
    return [
        Check(
            name="memory",
            ok=available >= MEMORY_BYTES,
            needed=True,
            found=f"{available / 1e9:.1f} GB available",
            fix=f"the demo needs {MEMORY_BYTES / 1e9:.0f} GB; end other programs",
        ),
        Check(
            name="shared memory",
            ok=shared >= SHARED_MEMORY_BYTES,
            needed=False,
            found=f"{shared / 1e9:.1f} GB free in /dev/shm",
            fix="give the container --shm-size=1g; without it Ray keeps objects on disk, slowly",
        ),
    ]


def _meminfo() -> dict[str, int]:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    return {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}


def _gpus() -> Check:
    fix = "nothing to do for the demo; on a GPU machine install its driver and a CUDA build of torch"
    program = shutil.which("nvidia-smi")
    if program is None:
        return Check(name="gpus", ok=False, needed=False, found="none (no nvidia-smi)", fix=fix)
    query = [program, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    result = subprocess.run(query, capture_output=True, text=True, timeout=30)
    names = [line.strip() for line in result.stdout.splitlines() if line.strip()]
    if result.returncode or not names:
        return Check(name="gpus", ok=False, needed=False, found="nvidia-smi names none", fix=fix)
    build = metadata.version("torch")
    return Check(
        name="gpus",
        ok="+cpu" not in build,
        needed=False,
        found=f"{len(names)} x {names[0]}, torch {build}",
        fix="this torch is a CPU build; install a CUDA build of it",
    )


def _browser() -> Check:
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    fix = "apt-get install chromium; only tests of the pages need it"
    return Check(name="chromium", ok=path is not None, needed=False, found=path or "none", fix=fix)


def _wandb() -> Check:

    mode = wandb_mode()
    found = f"{mode.mode}: {mode.why}"
    fix = "set WANDB_API_KEY, or run: wandb login; without, runs with runtime.wandb_project are kept offline"
    return Check(name="wandb", ok=mode.mode == "online", needed=False, found=found, fix=fix)


def _assets() -> list[Check]:

    return [
        Check(
            name=f"asset {state.asset.name}",
            ok=bool(state.location),
            needed=False,
            found=str(state.location or "not fetched"),
            fix=f"ncp assets {state.asset.name}",
        )
        for state in list_assets()
    ]
