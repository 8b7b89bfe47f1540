"""The transport of several hosts: shared memory within each host, MPI between them."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Self

from popdist.engine import _core
from popdist.engine.hosts.exchanges import HostExchanges
from popdist.engine.hosts.meeting import MeetOverHosts
from popdist.engine.hosts.member import HostsMember
from popdist.engine.hosts.point_to_point import receive_row, send_row
from popdist.engine.hosts.world import JobHosts
from popdist.engine.meet.group_name import GroupName
from popdist.engine.meet.pidfds import Pidfd
from popdist.engine.rows import Pair, Rows
from popdist.engine.shm.arena import Meeting
from popdist.engine.shm.member import ShmMember
from popdist.engine.shm.transport import ShmTransport, check_bytes, check_pair
from popdist.engine.spec.operations import (
    ALGORITHM_NAMES,
    ALGORITHMS,
    DIRECT,
    Described,
    Operation,
)
from popdist.engine.transport import Core, Transport
from popdist.engine.tuning import Tuning, cores_of_members


class HostsTransport:
    """Carries rows among the members of a group on several hosts."""

    def __init__(self, member: HostsMember, replicas: Sequence[int]) -> None:
        self.rank, self.instances = member.rank, member.instances
        self.replicas = tuple(replicas)
        self._member = member
        self._split = _core.Split(
            member.rank, self.replicas, hosts=member.layout.host_of
        )
        self.core = Core(member.comm, self._split, member.failure)
        self._exchanges = HostExchanges(member)
        # What does not depend on the rows.
        self.queue, self.disown = member.comm.queue, member.disown
        self.set_trace, self.set_timeout = member.set_trace, member.set_timeout
        self.identity, self.record_to = member.uid, member.comm.record_to
        self.end, self.give_up, self.close = member.end, member.give_up, member.close

    @classmethod
    def meet(
        cls,
        name: GroupName,
        rank: int,
        instances: Sequence[int],
        *,
        job_hosts: JobHosts,
        timeout: float = 1800.0,
        stall: float = 60.0,
        simd: str | None = None,
        tuning: Tuning | None = None,
        known: Mapping[int, Pidfd] | None = None,
        ended_file: str = "",
    ) -> Transport:
        """Meet the other members, and return when all have come; see MeetMembers.

        Members of one host get that one's transport, which never uses MPI.

        Args:
            job_hosts: Where the instances of the job are.
        """
        meeting = Meeting(
            name, rank, instances, timeout, stall, known or {}, ended_file
        )
        meet = MeetOverHosts(meeting, job_hosts)
        if len(set(meet.hosts())) == 1:
            return ShmTransport(ShmMember(meeting, simd, tuning), [1] * len(instances))
        member = meet.run(simd, tuning)
        return cls(member, [1] * len(instances))

    def view(self, replicas: Sequence[int]) -> Self:
        return type(self)(self._member, replicas)

    @property
    def pidfds(self) -> dict[int, Pidfd]:
        return self._member.local.arena.watching()

    @property
    def cores(self) -> int:
        """How many cores those of this host can use together."""
        return cores_of_members(self._member.local.arena.pids)

    @property
    def last_algorithm(self) -> str:
        return ALGORITHM_NAMES[self._member.comm.last()[0]]

    @property
    def runs(self) -> dict[str, int]:
        return dict(zip(ALGORITHMS, self._member.comm.runs(), strict=True))

    @property
    def waits(self) -> tuple[int, int, int, int]:
        return self._member.comm.waits()

    def blocks(self, nbytes: int) -> tuple[int, bool]:
        block_bytes, past_caches = self._member.comm.blocks(nbytes) or (0, 0)
        return block_bytes, bool(past_caches)

    def allocate(self, nbytes: int) -> None:
        """Return None: members on different hosts share no memory."""

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
        self._reduce(Operation.ALL_REDUCE, arrays, reduction, algorithm, -1, name)

    def reduce(
        self, source: Rows, target: Rows, reduction: int, root: int, *, name: int = 0
    ) -> None:
        check_pair(source, target, source.dtype)
        where = (target.address,) * len(source.addresses)
        row = Rows(where, target.shape, target.dtype, target.owner)
        self._reduce(Operation.REDUCE, [(source, row)], reduction, DIRECT, root, name)

    def reduce_scatter(
        self, source: Rows, target: Rows, reduction: int, *, name: int = 0
    ) -> None:
        total, local = sum(self.replicas), self.replicas[self.rank]
        if source.count % total or target.count != source.count // total * local:
            raise ValueError(
                f"The target has {target.count} elements, but the {local} of {total} "
                f"replicas here get equal parts of {source.count}."
            )
        self._member.reduce(
            self._split,
            [(source.count, source.addresses, None)],
            [source.shape],
            *(Operation.REDUCE_SCATTER, source.dtype, reduction, DIRECT, -1, name),
            target.address,
        )

    def broadcast(
        self,
        row: Rows,
        root: int,
        *,
        name: int = 0,
        prelude_to: Operation | None = None,
    ) -> None:
        shapes = row.shape if prelude_to is None else ()
        call = _call(Operation.BROADCAST, row, root, row.count, name, prelude_to)
        step = partial(self._exchanges.broadcast, row, root)
        self._member.run(call, shapes, step)

    def all_gather(
        self,
        source: Rows,
        target: Rows,
        lengths: Sequence[int],
        *,
        name: int = 0,
        prelude_to: Operation | None = None,
    ) -> None:
        check_bytes("source", source, lengths[self.rank])
        check_bytes("target", target, sum(lengths))
        count = sum(lengths) // _item(source)
        call = _call(Operation.ALL_GATHER, source, -1, count, name, prelude_to)
        details = tuple(lengths)
        step = partial(self._exchanges.all_gather, source, target, details)
        self._member.run(call, details, step)

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
        count = sum(lengths) // _item(source)
        call = _call(Operation.GATHER, source, root, count, name)
        details = tuple(lengths)
        step = partial(self._exchanges.gather, source, target, details, root)
        self._member.run(call, details, step)

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
        count = sum(lengths) // _item(target)
        call = _call(Operation.SCATTER, target, root, count, name)
        details = tuple(lengths)
        step = partial(self._exchanges.scatter, source, target, details, root)
        self._member.run(call, details, step)

    def all_to_all(self, source: Rows, target: Rows, *, name: int = 0) -> None:
        size = len(self.replicas)
        if not source.shape or source.shape[0] != size:
            raise ValueError(
                f"The source has shape {source.shape}, but needs a leading axis of "
                f"{size}: a part for each member."
            )
        check_bytes("target", target, source.nbytes)
        call = _call(Operation.ALL_TO_ALL, source, -1, source.count, name)
        step = partial(self._exchanges.all_to_all, source, target)
        self._member.run(call, source.shape, step)

    def send(self, row: Rows, to: int) -> None:
        call = _call(Operation.SEND, row, to, row.count, 0)
        self._member.run(call, (), partial(send_row, self._member, row, to))

    def receive(self, row: Rows, source: int) -> None:
        call = _call(Operation.RECEIVE, row, source, row.count, 0)
        self._member.run(call, (), partial(receive_row, self._member, row, source))

    def barrier(self, name: int = 0) -> None:
        call: Described = (Operation.BARRIER, 0, 0, 0, 0, 0, name)
        self._member.run(call, (), self._exchanges.barrier)

    def _reduce(
        self,
        operation: Operation,
        arrays: Sequence[Pair],
        reduction: int,
        algorithm: int,
        root: int,
        name: int,
    ) -> None:
        """Reduce arrays into the rows of all members, or of the root alone."""
        self._member.reduce(
            self._split,
            [(s.count, s.addresses, t.addresses) for s, t in arrays],
            [source.shape for source, _ in arrays],
            *(operation, arrays[0][0].dtype, reduction, algorithm, root, name, 0),
        )


def _item(rows: Rows) -> int:
    return rows.nbytes // rows.count if rows.count else 1


def _call(
    operation: Operation,
    rows: Rows,
    root: int,
    count: int,
    name: int,
    prelude_to: Operation | None = None,
) -> Described:
    return operation, rows.dtype, int(prelude_to or 0), 0, root, count, name
