"""How the processes that are measured together keep in step."""

import os
from typing import NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from popdist.engine.group import Group

Floats = NDArray[np.float64]


class Communicator(Protocol):
    """All members that measure. Each method is collective."""

    rank: int
    size: int

    def barrier(self) -> object:
        """Return when every member has called it."""

    def greatest(self, values: Floats) -> Floats:
        """Return, element by element, the greatest value of all members."""


class GroupCommunicator:
    """A communicator over a group of the engine that has one row a member."""

    def __init__(self, group: Group) -> None:
        self.rank, self.size = group.rank, group.size
        self.barrier = group.barrier
        self._group = group

    def greatest(self, values: Floats) -> Floats:
        """Return, element by element, the greatest value of all members."""
        result: Floats = self._group.all_reduce(values, op="max")
        return result


def refuse(comm: Communicator, sentence: str) -> NoReturn:
    """End all members; member 0 prints the sentence. All members must call it."""
    raise SystemExit(f"popdist.bench: {sentence}" if comm.rank == 0 else 1)


def placement(comm: Communicator) -> list[str]:
    """Return which CPUs each member may use, such as `0-3,8`."""
    own = sorted(os.sched_getaffinity(0))
    most = int(comm.greatest(np.array([own[-1]], np.float64))[0])
    masks = np.zeros((comm.size, most + 1))
    masks[comm.rank, own] = 1
    return [in_ranges(np.flatnonzero(row).tolist()) for row in comm.greatest(masks)]


def in_ranges(cpus: list[int]) -> str:
    """Return ascending numbers as text, with each run as `first-last`."""
    runs: list[list[int]] = []
    for cpu in cpus:
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)
