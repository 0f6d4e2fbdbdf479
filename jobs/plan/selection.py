"""Which of a run's steps are brought to completion now, and which are computed anew.

A run always *names* all steps of its recipe; `--until` and `--only` choose among them for this invocation.

`--force STEP` never deletes or replaces an output. It asks for the step's next *generation*, a number that enters the
step's identity once it is above 0. So the forced step and everything computed from it are other steps with directories
of their own, other runs and their live leases keep what they use, and what no run names any more is left to `ncp gc`.
The generation chosen is the first one that is not done, so the same command, given again after a crash, resumes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from curriculum.errors import RecipeError, nearest
from curriculum.schema import Recipe
from jobs.graph import build_graph
from pipeline.dag.step import Step
from pipeline.dag.store import step_store
from pipeline.storage import Storage


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What one invocation works on. At most one of `until` and `only`."""

    until: str | None = None
    """This step and all that it hangs on."""
    only: str | None = None
    """This step alone; what it needs must be done."""
    force: tuple[str, ...] = ()
    """Steps to compute anew."""
    retry_failed: bool = True
    """Whether a step that failed for bad input in an earlier invocation is tried again."""

    def arguments(self) -> list[str]:
        """As on the command line, without `force`: a submitted job is given the generations themselves."""
        chosen = [("--until", self.until), ("--only", self.only)]
        words = [word for option, step in chosen if step is not None for word in (option, step)]
        return words if self.retry_failed else [*words, "--no-retry-failed"]


def check_selection(steps: Sequence[Step], selection: Selection) -> None:
    """Raise RecipeError for a step that is not in the run, or for both --until and --only."""
    if selection.until is not None and selection.only is not None:
        raise RecipeError(f"--only {selection.only}: excludes --until {selection.until}; give one of the two")
    names = [step.name for step in steps]
    for option, name in (
        ("--until", selection.until),
        ("--only", selection.only),
        *(("--force", name) for name in selection.force),
    ):
        if name is not None and name not in names:
            raise RecipeError(f"{option}: no step {name!r}; {nearest(name, names)}")


def wanted_steps(steps: Sequence[Step], selection: Selection) -> frozenset[str]:
    """Names of the steps that `selection` works on."""
    if selection.only is not None:
        return frozenset({selection.only})
    if selection.until is None:
        return frozenset(step.name for step in steps)
    wanted = {selection.until}
    for step in reversed(steps):
        if step.name in wanted:
            wanted |= {*step.needs, *step.after}
    return frozenset(wanted)


def check_only(storage: Storage, steps: Sequence[Step], selection: Selection) -> None:
    """Raise RecipeError when --only names a step whose inputs are not all done."""
    if selection.only is None:
        return
    by_name = {step.name: step for step in steps}
    missing = [
        name
        for name in by_name[selection.only].needs
        if not step_store(storage, by_name[name]).done(by_name[name])
    ]
    if missing:
        raise RecipeError(
            f"--only {selection.only}: needs {', '.join(missing)}, not done yet; use --until {selection.only}"
        )


def with_forced(storage: Storage, recipe: Recipe, pins: Mapping[str, str], force: Sequence[str]) -> Recipe:
    """`recipe` with each step of `force` at its first generation that is not done."""
    order = [step.name for step in build_graph(recipe, pins)]
    for name in sorted(force, key=order.index):
        generation = recipe.generations.get(name, 0)
        while True:
            recipe = replace(recipe, generations={**recipe.generations, name: generation})
            step = next(step for step in build_graph(recipe, pins) if step.name == name)
            if not step.known or not step_store(storage, step).done(step):
                break
            generation += 1
    return recipe


def generation_overrides(recipe: Recipe) -> list[str]:
    """The recipe's generations as an override, for a job that is given the recipe's name."""
    above = {name: count for name, count in sorted(recipe.generations.items()) if count}
    if not above:
        return []
    return [f"generations={{{', '.join(f'{name}: {count}' for name, count in above.items())}}}"]
