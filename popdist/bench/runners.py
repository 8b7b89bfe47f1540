"""The candidates that carry out a task: the engine, and the floor."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from popdist.bench import inputs
from popdist.bench.tasks import Task
from popdist.engine.group import Group

# Carries a task out for as many of its inputs as the argument says, one call each.
Run = Callable[[int], None]


class Candidate(Protocol):
    """An object with the operations, called in the same way as by a program."""

    name: str

    def runner(self, task: Task) -> Run:
        """Return a function that carries this task out and does nothing else."""


class Peer(Candidate, Protocol):
    """A candidate to compare the engine with."""

    library: str
    operations: Sequence[str]


def run_pairs(call: Callable[..., object], *columns: Sequence[Any]) -> Run:
    """Return a function that calls with a pair from two columns, for each pair in turn.

    With neither `*` nor keywords in the loop: those take longer than the loop itself.
    """
    pairs = list(zip(*columns, strict=True))

    def run(count: int) -> None:
        for first, second in pairs[:count]:
            call(first, second)

    return run


def run_each(call: Callable[..., object], column: Sequence[Any]) -> Run:
    """Return a function that calls with each value of a column in turn."""

    def run(count: int) -> None:
        for x in column[:count]:
            call(x)

    return run


class Engine:
    """The engine of this package, on a group that has one row a member."""

    def __init__(
        self,
        group: Group,
        algorithm: str | None = None,
        name: str = "engine",
        caller: Candidate | None = None,
    ) -> None:
        """Take a group.

        Args:
            caller: Calls it in another way than as a program of numpy.
        """
        self.name = name
        self._caller = caller
        self.group = group
        self._algorithm = algorithm

    def runner(self, task: Task) -> Run:
        """Return a function that carries this task out."""
        if self._caller is not None:
            return self._caller.runner(task)
        call, results = getattr(self.group, task.operation), task.results
        if task.operation == "all_gather":
            results = [result.reshape(task.members, -1) for result in results]
        # Where the engine is to choose, the call is the ordinary one.
        if self._algorithm is not None:
            call = partial(call, algorithm=self._algorithm)
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


class Floor:
    """Every member copies an array of the task's size: no operation moves less."""

    name = "floor"

    def runner(self, task: Task) -> Run:
        """Return a function that overwrites the larger arrays of the task."""
        larger = task.results if task.operation == "all_gather" else task.inputs
        source = task.source
        if len(source) < task.length:
            source = inputs.source(task.length, task.dtype, task.rank)
        return run_pairs(np.copyto, larger, [source] * len(larger))
