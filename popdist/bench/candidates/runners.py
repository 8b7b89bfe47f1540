"""What is measured, as calls that reduce arrays in place: the engine, and the floor."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from popdist.bench.measure.inputs import Array

if TYPE_CHECKING:
    from popdist.engine.group import Group

# Reduces as many of the rows as it is told, one call each.
Run = Callable[[int], None]


class Candidate(Protocol):
    """Something that can all-reduce, each in the way that a program would write it."""

    name: str

    def runner(self, rows: Sequence[Array], source: Array) -> Run:
        """Return what reduces these rows in place, with nothing else in its loop."""


class Engine:
    """The engine of this package, on a group that has one row a member."""

    def __init__(
        self, group: "Group", algorithm: str | None = None, name: str = "engine"
    ) -> None:
        self.name = name
        self.group = group
        self._algorithm = algorithm

    def runner(self, rows: Sequence[Array], source: Array) -> Run:
        """Return what reduces these rows in place."""
        arrays = list(rows)
        all_reduce, algorithm = self.group.all_reduce, self._algorithm

        def plainly(count: int) -> None:
            for x in arrays[:count]:
                all_reduce(x, out=x)

        def by_algorithm(count: int) -> None:
            for x in arrays[:count]:
                all_reduce(x, out=x, algorithm=algorithm)

        # Where the engine is to choose, the call is the ordinary one.
        return plainly if algorithm is None else by_algorithm


class Floor:
    """Every member copies its own array at once: no all-reduce moves less."""

    name = "floor"

    def runner(self, rows: Sequence[Array], source: Array) -> Run:
        """Return what overwrites these rows with the source."""
        arrays, copy = list(rows), np.copyto

        def run(count: int) -> None:
            for x in arrays[:count]:
                copy(x, source)

        return run
