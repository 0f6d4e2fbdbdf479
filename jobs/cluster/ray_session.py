"""Connecting to Ray: the cluster that RAY_ADDRESS names, or a small local one of our own; and running work there.

The local cluster is private: its token is drawn for this process and handed to Ray in the environment, so that other
users of the machine cannot submit to it and nothing is written into the home directory. To a cluster of several machines
the code is shipped, unless this process is a submitted job, whose code is there already.

A task that asks for no CPU and no GPU only conducts others (Ray Data's and Ray Train's drivers): it is kept on the node of
the DAG's driver, the head node of a submitted run. So nothing that owns work ever lies on a node that may be taken away,
and a lost worker node is a lost worker, never a lost owner.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from curriculum.schema import RuntimeSpec
from jobs.cluster.capacity import Demand, WaitingForNodes
from jobs.cluster.errors import ClusterUnavailable
from jobs.cluster.ray_alive import check_ray, ray_watched
from jobs.cluster.reach import check_ray_address, last_line
from jobs.cluster.shipping import RAY_SETTINGS, carried_environment, staged_code
from jobs.runs.stop import run_stop_requested, signalled
from pipeline.dag.runner import StepContext, Stopped

T = TypeVar("T")
POLL_SECONDS = 0.5
LOCAL_STARTS = 4
JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Set by Ray's job server in the processes that it starts."""


class Abandoned(Stopped):
    """The run was asked to stop while the step waited for a node; nothing of it was running."""


@contextlib.contextmanager
def ray_session(runtime: RuntimeSpec) -> Iterator[None]:
    """An initialised Ray for the block. Attaches when Ray is already initialised in this process."""
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    address = os.environ.get("RAY_ADDRESS")
    if not address and "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    import ray  # after the environment is set: Ray reads it when imported

    if ray.is_initialized():
        yield
        return
    try:
        _connect(address, runtime, {"logging_level": logging.ERROR, "log_to_driver": False})
    except SystemExit as leave:  # Ray's own handler of a SIGTERM that comes while it starts
        raise KeyboardInterrupt from leave
    with ray_watched():
        try:
            yield
        finally:
            ray.shutdown()


def _connect(address: str | None, runtime: RuntimeSpec, options: dict[str, Any]) -> None:
    """Raises ClusterUnavailable when the cluster does not answer, or a local Ray does not start in time."""
    import ray

    if not address:
        return _start_local(runtime, options)
    check_ray_address(address)
    try:
        if JOB_VARIABLE in os.environ:
            ray.init(address=address, **options)
        else:
            with staged_code() as code:
                environment = {"working_dir": str(code), "env_vars": carried_environment()}
                ray.init(address=address, runtime_env=environment, **options)
    except (ConnectionError, TimeoutError) as error:
        raise ClusterUnavailable(
            f"RAY_ADDRESS: {address!r} does not let us in ({last_line(error)}); give RAY_AUTH_MODE=token and the cluster's "
            "token if it asks for one, and see whether all its ports can be reached"
        ) from error


def _start_local(runtime: RuntimeSpec, options: dict[str, Any]) -> None:
    """A local cluster. A busy machine is given several tries: Ray's own patience is half a minute, and no setting."""
    import ray

    for tries_left in reversed(range(LOCAL_STARTS)):
        try:
            ray.init(
                address="local",
                num_cpus=runtime.local_cpus,
                object_store_memory=runtime.object_store_mib * 1024 * 1024,
                include_dashboard=False,
                **options,
            )
            return
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
            ray.shutdown()
            if not tries_left:
                raise ClusterUnavailable(
                    f"Ray did not start on this machine in {LOCAL_STARTS} tries ({last_line(error)}); end what keeps "
                    "it busy, see ncp doctor, and give the command again"
                ) from error


def submit_remote(
    function: Callable[..., Any], *arguments: Any, num_cpus: float = 0.0, num_gpus: float = 0.0
) -> Any:
    """Start `function(*arguments)` as one Ray task; `await_remote` gives its result.

    The task is not retried by Ray: attempts are counted by the DAG, which knows a user's error from a lost node. Its
    process is its own and ends with it: memory is given back, and Ray Data's libraries never meet torch's in one process
    (where oneMKL was seen to find no room for libtorch).
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    options: dict[str, Any] = {"num_cpus": num_cpus, "num_gpus": num_gpus, "max_retries": 0, "max_calls": 1}
    if not num_cpus and not num_gpus:
        here = ray.get_runtime_context().get_node_id()
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(here, soft=True)
    return ray.remote(**options)(function).remote(*arguments)


def await_remote(
    task: Any,
    *,
    patience: Callable[[], bool] = lambda: True,
    demand: Demand | None = None,
    context: StepContext | None = None,
) -> Any:
    """The result of a started task; its own exception is raised here.

    Raises ClusterLost once the local Ray is gone. `patience` is asked every half second; Stopped is raised once it says no. While the cluster's nodes could not hold
    `demand`, the step of `context` says what is missing (Ray itself would wait in silence), and Abandoned is raised when
    its run is asked to stop: what waits for a node cannot answer that itself.
    """
    import ray
    from ray.exceptions import RayError, RayTaskError

    waiting = WaitingForNodes(demand, context.report_waiting) if demand and context else None
    while not ray.wait([task], timeout=POLL_SECONDS)[0]:
        check_ray()
        if not patience():
            raise Stopped("stopped while a task was running")
        if waiting and context and waiting.look() and run_stop_requested(context.storage, context.run):
            ray.cancel(task, force=True)
            raise Abandoned("stopped while waiting for a node")
    try:
        return ray.get(task)
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, Exception) and not isinstance(cause, RayTaskError):
            raise cause from error
        raise
    except RayError:
        check_ray()
        raise


def call_remote(
    function: Callable[..., T],
    *arguments: Any,
    num_cpus: float = 0.0,
    num_gpus: float = 0.0,
    demand: Demand | None = None,
    context: StepContext | None = None,
) -> T:
    """Run `function(*arguments)` as one Ray task and wait for its result, as `await_remote` does. Raises Stopped on a signal.

    `demand` is what the work needs when that is not the task's own `num_cpus` and `num_gpus`.
    """
    if demand is None and (num_cpus or num_gpus):
        demand = Demand(count=1, cpus=num_cpus, gpus=num_gpus)
    task = submit_remote(function, *arguments, num_cpus=num_cpus, num_gpus=num_gpus)
    return await_remote(task, patience=lambda: not signalled(), demand=demand, context=context)
