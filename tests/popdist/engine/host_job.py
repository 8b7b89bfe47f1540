"""Jobs on several hosts, as the core makes their calls, without MPI between them.

Members are threads of this process. The members of a host share an arena, and members
of different hosts reach each other by FakeLinks.
"""

import mmap
import os
import select
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from popdist.engine import _core, call_table
from popdist.engine.hosts.layout import Layout
from popdist.engine.rows import Rows
from popdist.engine.spec.dtypes import REDUCTIONS, code_of
from popdist.engine.spec.operations import AUTO, DIRECT, Described, Operation, Status
from tests.popdist.engine.fake_links import TAGS, FakeLinks
from tests.popdist.engine.members import LONG, SMALL
from tests.popdist.engine.samples import Array

T = TypeVar("T")

ALL_REDUCE, REDUCE = Operation.ALL_REDUCE, Operation.REDUCE
FLOAT32 = np.dtype(np.float32)


class Split(NamedTuple):
    """On which host each member is, and how many replicas it has."""

    hosts: Sequence[int]
    replicas: Sequence[int]


SPLITS = [
    Split([0, 1], [1, 1]),
    Split([0, 1], [3, 2]),
    Split([0, 0, 1, 1], [1, 1, 1, 1]),
    Split([0, 1, 1, 2], [1, 1, 1, 1]),
    Split([0, 0, 1, 1, 1], [2, 1, 1, 2, 1]),
    Split([0, 0, 1, 2, 2], [1, 4, 3, 2, 5]),
    Split([0, 0, 1, 2, 2, 2], [5, 3, 1, 9, 1, 1]),
    Split([0, 1, 2, 3, 4, 5], [1, 1, 1, 1, 1, 1]),
    # Members of a host without successive ranks.
    Split([0, 1, 0, 1], [1, 1, 1, 1]),
    Split([0, 1, 2, 0, 2, 1], [2, 1, 5, 1, 3, 1]),
]


def drawn_split(seed: int) -> Split:
    dice = np.random.default_rng(seed)
    size = int(dice.integers(3, 7))
    hosts = [0, 1, *(int(n) for n in dice.integers(0, 3, size - 2))]
    layout = Layout(0, range(size), [hosts[i] for i in dice.permutation(size)])
    return Split(layout.host_of, [int(n) for n in dice.integers(1, 7, size)])


class Call(NamedTuple):
    """A reduction of the rows of several arrays as one."""

    arrays: Sequence[Array]
    op: str = "sum"
    operation: Operation = ALL_REDUCE
    root: int = -1
    name: int = 0


class Member:
    """A member of a job: its endpoint in the arena of its host, and its hooks."""

    def __init__(
        self, layout: Layout, split: Split, arena: Any, job: "Job", simd: str | None
    ) -> None:
        self.rank = layout.rank
        self.split = _core.Split(self.rank, split.replicas, hosts=split.hosts)
        self.replicas = sum(split.replicas)
        # The hooks' arguments.
        self.mismatches: list[tuple[int, Described]] = []
        self.link_errors: list[int] = []
        self.waited_for: set[int] = set()
        self.deaths: list[int] = []
        self.prepared: list[int] = []
        self.interruption: Exception | None = None
        # What happens until there is news.
        self.news: Callable[[], None] = lambda: None
        here = len(layout.local_ranks)
        self.comm = _core.Comm(
            *(arena, layout.local_rank, simd, [-1] * here, [os.getpid()] * here),
            *(LONG, LONG, print),
        )
        isend, irecv, test = job.links.functions
        epolls = job.epoll.fileno(), job.hangups.fileno()
        self.comm.connect_hosts(
            _core.mpi_links(isend, irecv, test, self.rank, 0, *epolls),
            *(self.rank, layout.host_of, range(len(split.hosts))),
            [TAGS * rank for rank in range(len(split.hosts))],
            weakref.proxy(self),
        )

    def look_while_waiting(self, peer: int, waited: float) -> None:
        self.waited_for.add(peer)
        if self.interruption is not None:
            raise self.interruption
        if waited > LONG:
            raise TimeoutError(f"Member {self.rank} waits for member {peer}.")

    def prepare(self, peer: int) -> None:
        self.prepared.append(peer)
        self.news()

    def end_for_death(self, peer: int) -> None:
        self.deaths.append(peer)
        self.comm.end(Status.STOPPED, "death")

    def end_for_mismatch(self, peer: int, theirs: Described) -> None:
        self.mismatches.append((peer, theirs))
        self.comm.end(Status.STOPPED, "mismatch")

    def end_after_link_error(self, error: int) -> None:
        self.link_errors.append(error)
        self.comm.end(Status.STOPPED, "links")

    def reduce(self, call: Call, out: Sequence[Array]) -> None:
        how = AUTO if call.operation is ALL_REDUCE else DIRECT
        pairs = [
            (replica_rows(x), replica_rows(o))
            for x, o in zip(call.arrays, out, strict=True)
        ]
        about = code_of(call.arrays[0].dtype), REDUCTIONS[call.op], how
        made = call_table.EngineCall(
            call.operation, pairs, *about, call.root, call.name
        )
        self.comm.run(self.split, made)

    def scattered(self, call: Call) -> Array:
        """Return this member's part of the result of a reduce_scatter of one array."""
        x = call.arrays[0]
        each = x[0].size // self.replicas
        out = np.ones(each * len(x), x.dtype)
        pairs = [(replica_rows(x), replica_rows(out[np.newaxis]))]
        about = code_of(x.dtype), REDUCTIONS[call.op], DIRECT, -1, call.name
        made = call_table.EngineCall(Operation.REDUCE_SCATTER, pairs, *about)
        self.comm.run(self.split, made)
        return out

    def exchange(
        self,
        operation: Operation,
        source: Array,
        target: Array,
        lengths: Sequence[int] = (),
        root: int = -1,
    ) -> None:
        """Make a call that reads one row and writes one."""
        arrays = [(row_of(source), row_of(target))]
        made = call_table.EngineCall(
            operation, arrays, code_of(source.dtype), root=root, lengths=lengths
        )
        self.comm.run(None, made)

    def reduced(self, call: Call) -> list[Array]:
        """Return the result of a call, in rows of ones where there is none."""
        out = [np.ones_like(x) for x in call.arrays]
        self.reduce(call, out)
        return out

    def failed(self, call: Call) -> bool:
        return self.fails(lambda: self.reduced(call))

    def fails(self, call: Callable[[], object]) -> bool:
        """Make a call, and return whether it ends the group."""
        try:
            call()
        except _core.Failure:
            return True
        return False


def row_of(x: Array) -> Rows:
    """Return an array as one row."""
    return Rows((x.ctypes.data,), x.shape, code_of(x.dtype), x)


def replica_rows(x: Array) -> Rows:
    """Return the rows of an array with a leading axis."""
    assert x.flags.c_contiguous
    places = tuple(x.ctypes.data + i * x.strides[0] for i in range(len(x)))
    return Rows(places, x.shape[1:], code_of(x.dtype))


class Job:
    """All members of a job. Each makes its calls in a separate thread."""

    def __init__(self, split: Split, *, simd: str | None = None) -> None:
        self.links, self.epoll = FakeLinks(), select.epoll()
        self.hangups = select.epoll()
        size = len(split.hosts)
        layouts = [Layout(rank, range(size), split.hosts) for rank in range(size)]
        arenas = [arena_of(len(ranks)) for ranks in layouts[0].members]
        self.members = [
            Member(layout, split, arenas[layout.host], self, simd) for layout in layouts
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.comm.close()
        self.epoll.close()
        self.hangups.close()

    def each(self, function: Callable[[Member], T]) -> list[T]:
        """Return what the function returns for all members, at the same time."""
        with ThreadPoolExecutor(len(self.members)) as threads:
            return list(threads.map(function, self.members))


def arena_of(members: int, spin_us: int = SMALL.spin_us) -> mmap.mmap:
    sizes = members, SMALL.block_bytes, SMALL.oneshot_bytes, spin_us
    memory = mmap.mmap(-1, _core.arena_sizes(*sizes)[0])
    _core.initialise(memory, sizes)
    return memory
