"""Actors that work through a list of pieces; one that is lost is replaced, and its piece is done by another.

Which actor does what, and how many there are, is runtime: pieces write their results themselves, so all that comes back is
that they are done. A piece goes only to an actor that has answered before: one that the cluster has no room for keeps
nobody waiting.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

POLL_SECONDS = 0.5
LOSSES_PER_PIECE = 3
"""A piece that this many actors died of is not given to another."""


class ActorLost(RuntimeError):
    """Actors died again and again; says over what."""


class ActorPool:
    """At most `size` actors of one class. A context manager that leaves none behind.

    `actor_class` has a method `ready` that returns its process id. `check` is called twice a second while work goes on; it
    raises what shall end it.
    """

    def __init__(
        self,
        actor_class: type,
        *arguments: Any,
        size: int,
        num_cpus: float,
        num_gpus: float = 0.0,
        check: Callable[[], None] = lambda: None,
    ):
        import ray

        self._make = lambda: (
            ray.remote(actor_class).options(num_cpus=num_cpus, num_gpus=num_gpus).remote(*arguments)
        )
        self._size, self._check = max(1, size), check
        self._idle: list[Any] = []
        self._alive: list[Any] = []
        self._losses: Counter[Any] = Counter()
        self.processes: dict[Any, int] = {}
        """Ready actors and their process ids."""
        self.lost = 0

    def __enter__(self) -> ActorPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray

        for actor in self._alive:
            ray.kill(actor)

    def call(self, method: str, *arguments: Any) -> Any:
        """One call on any actor. Its exception is raised here; raises ActorLost when actors keep dying of it."""
        answers: list[Any] = []
        self._run([(method, arguments)], 1, lambda _, answer: answers.append(answer))
        return answers[0]

    def map(self, method: str, pieces: Sequence[Any], done: Callable[[Any, Any], None]) -> None:
        """`method(piece)` for every piece, in any order; `done(piece, answer)` after each. Raises as `call`."""
        self._run([(method, (piece,)) for piece in pieces], self._size, lambda call, a: done(call[1][0], a))

    def _run(
        self,
        calls: Sequence[tuple[str, tuple[Any, ...]]],
        size: int,
        done: Callable[[tuple[str, tuple[Any, ...]], Any], None],
    ) -> None:
        import ray

        waiting = deque(enumerate(calls))
        size = min(size, len(calls))
        pending: dict[Any, tuple[Any, int | None]] = {}
        left = len(calls)

        def hire() -> None:
            actor = self._make()
            self._alive.append(actor)
            pending[actor.ready.remote()] = (actor, None)

        for _ in range(size - len(self._alive)):
            hire()
        while left:
            while self._idle and waiting:
                actor, (number, (method, arguments)) = self._idle.pop(), waiting.popleft()
                pending[getattr(actor, method).remote(*arguments)] = (actor, number)
            ready, _ = ray.wait(list(pending), timeout=POLL_SECONDS)
            self._check()
            for reference in ready:
                actor, number = pending.pop(reference)
                answer, alive = self._answer(reference)
                if not alive:
                    self._bury(actor, calls[number] if number is not None else None)
                    if number is not None:
                        waiting.appendleft((number, calls[number]))
                    if waiting:
                        hire()
                    continue
                self._idle.append(actor)
                if number is None:
                    self.processes[actor] = answer
                else:
                    left -= 1
                    done(calls[number], answer)
        # Actors that the cluster never had room for are not waited for.
        for actor, _ in pending.values():
            self._alive.remove(actor)
            ray.kill(actor)

    def _answer(self, reference: Any) -> tuple[Any, bool]:
        """(what came back, whether its actor lives)."""
        import ray
        from ray.exceptions import RayActorError, RayTaskError

        try:
            return ray.get(reference), True
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, Exception) and not isinstance(cause, RayTaskError):
                raise cause from error
            raise
        except RayActorError:
            return None, False

    def _bury(self, actor: Any, call: tuple[str, tuple[Any, ...]] | None) -> None:
        self.lost += 1
        self._alive.remove(actor)
        self.processes.pop(actor, None)
        key = "starting" if call is None else f"{call[0]} {', '.join(map(str, call[1]))}".strip()
        self._losses[key] += 1
        if self._losses[key] >= LOSSES_PER_PIECE:
            raise ActorLost(
                f"{self._losses[key]} actors died in turn over: {key}; see Ray's worker logs "
                "(out of memory is the usual cause: lower evaluation_actors or give each more)"
            )
