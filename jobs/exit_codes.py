"""Exit codes of `ncp`, and how a run's failures become one."""

from __future__ import annotations

import sys

from pipeline.dag.runner import Outcome

DONE, FAILED, USAGE, REFUSED, STOPPED = 0, 1, 2, 3, 4
UNREACHABLE = 5
"""A service (storage, cluster) did not answer."""
LOST = 6
"""The connection was lost while the run goes on."""
EXIT_CODES = (
    "Exit codes: 0 done (also when the reader of the output has gone), 1 failed (or no room, or a bug: then with its traceback), "
    "2 wrong usage or input that cannot be used, 3 refused by a gate, 4 stopped (the same command resumes), "
    "5 a service (storage, cluster) did not answer, 6 connection lost while the run goes on."
)


def print_failures(outcome: Outcome) -> int:
    """Each failure on a line of stderr; returns the exit code."""
    for step, failure in outcome.failed.items():
        print(f"error: {step}: {failure.message}", file=sys.stderr)
    for step, culprit in outcome.blocked.items():
        print(f"error: {step}: not run, because {culprit} failed", file=sys.stderr)
    if all(failure.refused for failure in outcome.failed.values()):
        return REFUSED
    return USAGE if all(failure.user for failure in outcome.failed.values()) else FAILED
