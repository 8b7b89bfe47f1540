"""The part of a transport that is the same on one host and on several.

In both, members of a host share an arena. What the operations check, and how they
describe their calls, does not depend on how rows reach the other members.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from popdist.engine import _core
from popdist.engine.meet.pidfds import Pidfd
from popdist.engine.rows import Pair, Rows
from popdist.engine.shm.member import ShmMember
from popdist.engine.spec.dtypes import name_of
from popdist.engine.spec.operations import (
    ALGORITHM_NAMES,
    ALGORITHMS,
    DIRECT,
    NO_PRELUDE,
    Operation,
)
from popdist.engine.transport import Core
from popdist.engine.tuning import cores_of_members


class ArenaTransport(ABC):
    """A transport without the ways to carry out its reductions and exchanges."""

    def __init__(
        self,
        rank: int,
        instances: tuple[int, ...],
        replicas: Sequence[int],
        local: ShmMember,
        core: Core,
    ) -> None:
        """Take part in a group.

        Args:
            local: The member among those of this host.
        """
        self.rank, self.instances, self.replicas = rank, instances, tuple(replicas)
        self.core = core
        self._arena, self._comm = local.arena, local.comm
        self.queue, self.record_to = self._comm.queue, self._comm.record_to

    @property
    def pidfds(self) -> dict[int, Pidfd]:
        return self._arena.watching()

    @property
    def cores(self) -> int:
        """How many cores the members of this host can use together."""
        return cores_of_members(self._arena.pids)

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
            _check_pair(source, target, dtype)
        self._reduce(
            [(s.count, s.addresses, t.addresses) for s, t in arrays],
            [source.shape for source, _ in arrays],
            *(Operation.ALL_REDUCE, dtype, reduction, algorithm, -1, name, 0),
        )

    def reduce(
        self, source: Rows, target: Rows, reduction: int, root: int, *, name: int = 0
    ) -> None:
        _check_pair(source, target, source.dtype)
        where = [target.address] * len(source.addresses)
        # In steps of the direct algorithm; for one-shot there is too little to gain.
        self._reduce(
            [(source.count, source.addresses, where)],
            [source.shape],
            *(Operation.REDUCE, source.dtype, reduction, DIRECT, root, name, 0),
        )

    def reduce_scatter(
        self, source: Rows, target: Rows, reduction: int, *, name: int = 0
    ) -> None:
        total, local = sum(self.replicas), self.replicas[self.rank]
        if source.count % total or target.count != source.count // total * local:
            raise ValueError(
                f"The target has {target.count} elements, but the {local} of {total} "
                f"replicas here get equal parts of {source.count}."
            )
        self._reduce(
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
        prelude_to: Operation = NO_PRELUDE,
    ) -> None:
        lengths = [row.nbytes] * len(self.replicas)
        # Headers, which a prelude has, are of one shape.
        shapes = [row.shape] if prelude_to == NO_PRELUDE else []
        call = Operation.BROADCAST, prelude_to, row.dtype, root, name
        self._exchange(call, lengths, shapes, row, row)

    def all_gather(
        self,
        source: Rows,
        target: Rows,
        lengths: Sequence[int],
        *,
        name: int = 0,
        prelude_to: Operation = NO_PRELUDE,
    ) -> None:
        _check_bytes("source", source, lengths[self.rank])
        _check_bytes("target", target, sum(lengths))
        call = Operation.ALL_GATHER, prelude_to, source.dtype, -1, name
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
        _check_bytes("source", source, lengths[self.rank])
        if self.rank == root:
            _check_bytes("target", target, sum(lengths))
        call = Operation.GATHER, NO_PRELUDE, source.dtype, root, name
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
            _check_bytes("source", source, sum(lengths))
        _check_bytes("target", target, lengths[self.rank])
        call = Operation.SCATTER, NO_PRELUDE, target.dtype, root, name
        self._exchange(call, lengths, [], source, target)

    def all_to_all(self, source: Rows, target: Rows, *, name: int = 0) -> None:
        size = len(self.replicas)
        if not source.shape or source.shape[0] != size:
            raise ValueError(
                f"The source has shape {source.shape}, but needs a leading axis of "
                f"{size}: a part for each member."
            )
        _check_bytes("target", target, source.nbytes)
        lengths = [source.nbytes // size] * size
        call = Operation.ALL_TO_ALL, NO_PRELUDE, source.dtype, -1, name
        self._exchange(call, lengths, [source.shape], source, target)

    @abstractmethod
    def _reduce(
        self,
        segments: "Sequence[_core.Segment]",
        shapes: Sequence[Sequence[int]],
        *call: int,
    ) -> None:
        """Make a reduction; see _core.Comm.reduce_rows()."""

    @abstractmethod
    def _exchange(
        self,
        call: "Exchange",
        lengths: Sequence[int],
        shapes: Sequence[Sequence[int]],
        source: Rows,
        target: Rows,
    ) -> None:
        """Hand rows on; see _core.Comm.exchange()."""


# The operation, the one that it is a prelude to, dtype, root and name.
Exchange = tuple[Operation, Operation, int, int, int]


def _check_pair(source: Rows, target: Rows, dtype: int) -> None:
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


def _check_bytes(which: str, rows: Rows, nbytes: int) -> None:
    """Raise ValueError unless rows have as many bytes as the members' lengths say."""
    if rows.nbytes != nbytes:
        raise ValueError(
            f"The {which} has {rows.nbytes} bytes, but the members' lengths make it "
            f"{nbytes}."
        )
