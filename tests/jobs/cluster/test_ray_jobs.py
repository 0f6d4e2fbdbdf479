"""What a submission uploads and where it runs; the submission itself is in tests/faults, on a real cluster."""

from __future__ import annotations

import sys

import pytest

from jobs.cluster.errors import ClusterUnavailable
from jobs.cluster.ray_jobs import interpreter, job_client


def test_a_cluster_on_this_machine_uses_this_interpreter() -> None:
    assert interpreter("http://127.0.0.1:8265") == sys.executable
    assert interpreter("http://head.cluster:8265") == "python"


def test_an_address_that_does_not_answer_is_one_line() -> None:
    with pytest.raises(ClusterUnavailable, match=r"--address: 'http://127.0.0.1:1' does not answer"):
        job_client("http://127.0.0.1:1")
