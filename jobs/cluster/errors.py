"""What a cluster, as a service elsewhere, can fail with: known to the command line, with exit codes of their own."""

from __future__ import annotations


class ClusterUnavailable(RuntimeError):
    """A cluster or its job server does not answer, or does not let us in. One line: which address, why, and the fix."""


class ConnectionLost(RuntimeError):
    """The job server stopped answering while a run was followed; the run goes on. Names the command that follows it again."""
