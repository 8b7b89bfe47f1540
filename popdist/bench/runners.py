"""What is measured, as calls that carry out a task: the engine, and the floor."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from popdist.bench import inputs
from popdist.bench.tasks import Task

if TYPE_CHECKING:
    from popdist.engine.group import Group

# Carries a task out for as many of its inputs as the argument says, one call each.
Run = Callable[[int], None]


class Candidate(Protocol):
    """Something that has the operations, called in the way that a program would."""

    name: str

    def runner(self, task: Task) -> Run:
        """Return what carries this task out, with nothing else in its loop."""


class Engine:
    """The engine of this package, on a group that has one row a member."""

    def __init__(
        self, group: "Group", algorithm: str | None = None, name: str = "engine"
    ) -> None:
        self.name = name
        self.group = group
        self._algorithm = algorithm

    def runner(self, task: Task) -> Run:
        """Return what carries this task out."""
        if task.operation == "all_reduce":
            return self._all_reduce(task)
        call, results = getattr(self.group, task.operation), list(task.results)
        if task.operation == "all_gather":
            results = [result.reshape(task.members, -1) for result in results]
        pairs = list(zip(task.inputs, results, strict=True))

        def run(count: int) -> None:
            for x, result in pairs[:count]:
                call(x, out=result)

        return run

    def algorithm_of(self, task: Task) -> str:
        """Return how the engine has carried out the last call of this task."""
        # The other operations have one algorithm each.
        return self.group.last_algorithm if task.operation == "all_reduce" else "blocks"

    def blocks_of(self, task: Task) -> tuple[int, bool] | None:
        """Return the blocks that "direct" has settled on for this task."""
        return self.group.blocks(task.nbytes) if self.group.size > 1 else None

    def _all_reduce(self, task: Task) -> Run:
        arrays = list(task.inputs)
        all_reduce, algorithm = self.group.all_reduce, self._algorithm

        def with_default(count: int) -> None:
            for x in arrays[:count]:
                all_reduce(x, out=x)

        def by_algorithm(count: int) -> None:
            for x in arrays[:count]:
                all_reduce(x, out=x, algorithm=algorithm)

        # Where the engine is to choose, the call is the ordinary one.
        return with_default if algorithm is None else by_algorithm


class Floor:
    """Every member copies an array of the task's size: no operation moves less."""

    name = "floor"

    def runner(self, task: Task) -> Run:
        """Return what overwrites the larger arrays of the task."""
        larger = task.results if task.operation == "all_gather" else task.inputs
        arrays, copy = list(larger), np.copyto
        source = task.source
        if len(source) < task.length:
            source = inputs.source(task.length, task.dtype, task.rank)

        def run(count: int) -> None:
            for x in arrays[:count]:
                copy(x, source)

        return run
