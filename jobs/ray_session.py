"""Connecting to Ray: the cluster that RAY_ADDRESS names, or a small local one of our own.

The local cluster is private: its token is drawn for this process and handed to Ray in the environment, so that other
users of the machine cannot submit to it and nothing is written into the home directory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from curriculum.schema import RuntimeSpec
from jobs.stop import signalled
from pipeline.dag.runner import Stopped

T = TypeVar("T")
POLL_SECONDS = 0.5


@contextlib.contextmanager
def ray_session(runtime: RuntimeSpec) -> Iterator[None]:
    """An initialised Ray for the block. Attaches when Ray is already initialised in this process."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    address = os.environ.get("RAY_ADDRESS")
    if not address and "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    import ray  # after the environment is set: Ray reads it when imported

    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address:
        ray.init(address=address, **options)
    else:
        ray.init(
            address="local",
            num_cpus=runtime.local_cpus,
            object_store_memory=runtime.object_store_mib * 1024 * 1024,
            include_dashboard=False,
            **options,
        )
    try:
        yield
    finally:
        ray.shutdown()


def submit_remote(
    function: Callable[..., Any], *arguments: Any, num_cpus: float = 0.0, num_gpus: float = 0.0
) -> Any:
    """Start `function(*arguments)` as one Ray task; `await_remote` gives its result.

    The task is not retried by Ray: attempts are counted by the DAG, which knows a user's error from a lost node.
    """
    import ray

    task = ray.remote(function).options(num_cpus=num_cpus, num_gpus=num_gpus, max_retries=0)
    return task.remote(*arguments)


def await_remote(task: Any, *, patience: Callable[[], bool] = lambda: True) -> Any:
    """The result of a started task; its own exception is raised here.

    `patience` is asked every half second; Stopped is raised once it says no.
    """
    import ray
    from ray.exceptions import RayTaskError

    while not ray.wait([task], timeout=POLL_SECONDS)[0]:
        if not patience():
            raise Stopped("stopped while a task was running")
    try:
        return ray.get(task)
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, Exception) and not isinstance(cause, RayTaskError):
            raise cause from error
        raise


def call_remote(
    function: Callable[..., T], *arguments: Any, num_cpus: float = 0.0, num_gpus: float = 0.0
) -> T:
    """Run `function(*arguments)` as one Ray task and wait for its result. Raises Stopped on a signal."""
    task = submit_remote(function, *arguments, num_cpus=num_cpus, num_gpus=num_gpus)
    return await_remote(task, patience=lambda: not signalled())
