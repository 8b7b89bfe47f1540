"""The transport of one host: rows go through shared memory."""

from collections.abc import Mapping, Sequence
from typing import Self

from popdist.engine import _core
from popdist.engine.meet.group_name import GroupName
from popdist.engine.meet.pidfds import Pidfd
from popdist.engine.rows import Pair, Rows
from popdist.engine.shm.arena import Meeting
from popdist.engine.shm.member import ShmMember
from popdist.engine.spec.dtypes import name_of
from popdist.engine.spec.operations import (
    ALGORITHM_NAMES,
    ALGORITHMS,
    DIRECT,
    Operation,
)
from popdist.engine.transport import Core
from popdist.engine.tuning import Tuning, cores_of_members


class ShmTransport:
    """Carries rows among the members of one arena, with so many rows in each."""

    def __init__(self, member: ShmMember, replicas: Sequence[int]) -> None:
        self.rank = member.rank
        self.instances = member.instances
        self.replicas = tuple(replicas)
        self.member = member
        self._comm = member.comm
        self._split = _core.Split(member.rank, self.replicas)
        self.core = Core(self._comm, self._split, member.failure)
        # What does not depend on the rows.
        self._call = member.call
        self.queue, self.disown = self._comm.queue, self._comm.close
        self.set_trace, self.record_to = self._comm.set_trace, self._comm.record_to
        self.end, self.give_up = member.end, member.give_up
        self.allocate, self.set_timeout = member.allocate, member.set_timeout
        self.close = member.close

    @classmethod
    def meet(
        cls,
        name: GroupName,
        rank: int,
        instances: Sequence[int],
        *,
        timeout: float = 1800.0,
        stall: float = 60.0,
        simd: str | None = None,
        tuning: Tuning | None = None,
        known: Mapping[int, Pidfd] | None = None,
        ended_file: str = "",
    ) -> Self:
        """Meet the other members, and return when all have come; see MeetMembers.

        Args:
            tuning: The sizes of the arena; by default those that were measured.
        """
        meeting = Meeting(name, rank, instances, timeout, stall, known, ended_file)
        return cls(ShmMember(meeting, simd, tuning), [1] * len(instances))

    def view(self, replicas: Sequence[int]) -> Self:
        return type(self)(self.member, replicas)

    @property
    def pidfds(self) -> dict[int, Pidfd]:
        return self.member.arena.watching()

    @property
    def identity(self) -> str:
        return self.member.arena.identity

    @property
    def cores(self) -> int:
        return cores_of_members(self.member.arena.pids)

    @property
    def last_algorithm(self) -> str:
        return ALGORITHM_NAMES[self._comm.last()[0]]

    @property
    def runs(self) -> dict[str, int]:
        return dict(zip(ALGORITHMS, self._comm.runs(), strict=True))

    @property
    def waits(self) -> tuple[int, int, int, int]:
        return self._comm.waits()

    def blocks(self, nbytes: int) -> tuple[int, bool]:
        block_bytes, past_caches = self._comm.blocks(nbytes) or (0, 0)
        return block_bytes, bool(past_caches)

    def all_reduce(
        self,
        arrays: Sequence[Pair],
        reduction: int,
        *,
        algorithm: int = -1,
        name: int = 0,
    ) -> None:
        if not arrays:
            return
        dtype = arrays[0][0].dtype
        for source, target in arrays:
            check_pair(source, target, dtype)
        self._reduce(
            [(s.count, s.addresses, t.addresses) for s, t in arrays],
            [source.shape for source, _ in arrays],
            (Operation.ALL_REDUCE, dtype, reduction, algorithm, -1, name, 0),
        )

    def reduce(
        self, source: Rows, target: Rows, reduction: int, root: int, *, name: int = 0
    ) -> None:
        check_pair(source, target, source.dtype)
        where = [target.address] * len(source.addresses)
        # In steps of the direct algorithm; for one-shot there is too little to gain.
        self._reduce(
            [(source.count, source.addresses, where)],
            [source.shape],
            (Operation.REDUCE, source.dtype, reduction, DIRECT, root, name, 0),
        )

    def reduce_scatter(
        self, source: Rows, target: Rows, reduction: int, *, name: int = 0
    ) -> None:
        total = sum(self.replicas)
        local = self.replicas[self.rank]
        if source.count % total or target.count != source.count // total * local:
            raise ValueError(
                f"The target has {target.count} elements, but the {local} of {total} "
                f"replicas here get equal parts of {source.count}."
            )
        out = target.address
        self._reduce(
            [(source.count, source.addresses, None)],
            [source.shape],
            (Operation.REDUCE_SCATTER, source.dtype, reduction, DIRECT, -1, name, out),
        )

    def broadcast(
        self,
        row: Rows,
        root: int,
        *,
        name: int = 0,
        prelude_to: Operation | None = None,
    ) -> None:
        lengths = [row.nbytes] * len(self.replicas)
        # Headers, which a prelude has, are of one shape.
        shapes = [row.shape] if prelude_to is None else []
        call = Operation.BROADCAST, prelude_to or 0, row.dtype, root, name
        self._exchange(call, lengths, shapes, row, row)

    def all_gather(
        self,
        source: Rows,
        target: Rows,
        lengths: Sequence[int],
        *,
        name: int = 0,
        prelude_to: Operation | None = None,
    ) -> None:
        call = (Operation.ALL_GATHER, prelude_to or 0, source.dtype, -1, name)
        check_bytes("source", source, lengths[self.rank])
        check_bytes("target", target, sum(lengths))
        self._exchange(call, lengths, [], source, target)

    def gather(
        self,
        source: Rows,
        target: Rows,
        lengths: Sequence[int],
        root: int,
        *,
        name: int = 0,
    ) -> None:
        check_bytes("source", source, lengths[self.rank])
        if self.rank == root:
            check_bytes("target", target, sum(lengths))
        call = (Operation.GATHER, 0, source.dtype, root, name)
        self._exchange(call, lengths, [], source, target)

    def scatter(
        self,
        source: Rows,
        target: Rows,
        lengths: Sequence[int],
        root: int,
        *,
        name: int = 0,
    ) -> None:
        if self.rank == root:
            check_bytes("source", source, sum(lengths))
        check_bytes("target", target, lengths[self.rank])
        call = (Operation.SCATTER, 0, target.dtype, root, name)
        self._exchange(call, lengths, [], source, target)

    def all_to_all(self, source: Rows, target: Rows, *, name: int = 0) -> None:
        size = len(self.replicas)
        if not source.shape or source.shape[0] != size:
            raise ValueError(
                f"The source has shape {source.shape}, but needs a leading axis of "
                f"{size}: a part for each member."
            )
        check_bytes("target", target, source.nbytes)
        lengths = [source.nbytes // size] * size
        call = (Operation.ALL_TO_ALL, 0, source.dtype, -1, name)
        self._exchange(call, lengths, [source.shape], source, target)

    def send(self, row: Rows, to: int) -> None:
        self._call(self._comm.send, to, row.dtype, row.address, row.nbytes)

    def receive(self, row: Rows, source: int) -> None:
        self._call(self._comm.receive, source, row.dtype, row.address, row.nbytes)

    def barrier(self, name: int = 0) -> None:
        self._call(self._comm.barrier, name)

    def _reduce(
        self,
        segments: "Sequence[_core.Segment]",
        shapes: Sequence[Sequence[int]],
        call: tuple[int, int, int, int, int, int, int],
    ) -> None:
        self._call(self._comm.reduce_rows, self._split, segments, shapes, *call)

    def _exchange(
        self,
        call: tuple[int, int, int, int, int],
        lengths: Sequence[int],
        shapes: Sequence[Sequence[int]],
        source: Rows,
        target: Rows,
    ) -> None:
        addresses = source.address, target.address
        self._call(self._comm.exchange, *call, lengths, shapes, *addresses)


def check_pair(source: Rows, target: Rows, dtype: int) -> None:
    """Raise ValueError unless one call can reduce these rows into those."""
    if source.dtype != dtype or target.dtype != dtype:
        raise ValueError(
            f"Rows of {name_of(source.dtype)} are to be reduced into rows of "
            f"{name_of(target.dtype)} in a call of {name_of(dtype)}, but one call has "
            "one dtype."
        )
    if source.count != target.count:
        raise ValueError(
            f"Rows of {source.count} elements are to be reduced into rows of "
            f"{target.count}. Give rows of one length."
        )


def check_bytes(which: str, rows: Rows, nbytes: int) -> None:
    """Raise ValueError unless rows have as many bytes as the members' lengths say."""
    if rows.nbytes != nbytes:
        raise ValueError(
            f"The {which} has {rows.nbytes} bytes, but the members' lengths make it "
            f"{nbytes}."
        )
