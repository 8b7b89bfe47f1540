"""What carries rows between the members of a group, whatever arrays they come from.

A group turns arrays into rows and calls its transport; the transport knows addresses,
lengths and codes only. An adapter of another framework makes rows itself.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Protocol

from popdist.engine.spec.dtypes import item_bytes_of, name_of
from popdist.engine.spec.operations import Operation
from popdist.engine.worker import Worker


class Rows:
    """One array of a call: where its rows lie, one for each local replica or one.

    A value: nothing changes it. It is not a dataclass, because a frozen one takes as
    long to make as the rest of a small call.
    """

    __slots__ = ("addresses", "count", "dtype", "nbytes", "owner", "shape")

    def __init__(
        self,
        addresses: tuple[int, ...],
        shape: tuple[int, ...],
        dtype: int,
        owner: object = None,
    ) -> None:
        """Describe rows in memory.

        Args:
            addresses: Where each row begins, aligned to its elements. A row is in one
                piece.
            shape: The shape of a row.
            dtype: The code of its elements' type; see spec.dtypes.DTYPES.
            owner: Anything that keeps the memory alive as long as it is referred to.
        """
        size = item_bytes_of(dtype)
        count = prod(shape)
        for address in addresses:
            # Memory of an array without elements may lie anywhere.
            if address % size and count:
                raise ValueError(
                    f"A row of {name_of(dtype)} begins at address {address:#x}, "
                    f"but must begin at a multiple of {size}. Copy it first."
                )
        self.addresses = addresses
        self.shape = shape
        self.dtype = dtype
        self.owner = owner
        # How many elements and bytes a row has.
        self.count = count
        self.nbytes = count * size

    def __repr__(self) -> str:
        kind = f"{name_of(self.dtype)} of shape {self.shape}"
        return f"<Rows: {len(self.addresses)} of {kind}>"

    @property
    def address(self) -> int:
        """Where the only row begins.

        Raises:
            ValueError: There are several rows, or none.
        """
        if len(self.addresses) != 1:
            raise ValueError(
                f"The array has {len(self.addresses)} rows, but this operation takes "
                "an array of one."
            )
        return self.addresses[0]


# What is read, and where the result of it is written.
Pair = tuple[Rows, Rows]


class Transport(Protocol):
    """The operations of a group on rows.

    Each call blocks until this member has its result, and is collective: all members
    make the same calls in the same order. `root` and other members are given by
    their index. `name` is the number of the call's name, 0 for none. Rows that are
    written either are the very rows that are read, or share no memory with them.

    Where members' arrays may differ, they are described first in a call of its own,
    whose `prelude_to` is the operation that follows.

    Raises PopdistError: the call did not succeed on all members, and ends the group.
    """

    @property
    def rank(self) -> int: ...
    @property
    def replicas(self) -> tuple[int, ...]: ...
    @property
    def worker(self) -> Worker:
        """The thread that makes the group's calls beside the program, in order.

        Raises:
            GroupUnusableError: The transport is closed.
        """

    def close(self) -> None:
        """Begin no further calls. Those under way come to their end."""

    def all_reduce(
        self,
        arrays: Sequence[Pair],
        reduction: int,
        *,
        algorithm: int = -1,
        name: int = 0,
    ) -> None:
        """Reduce several arrays of one dtype as if they were one.

        Each target has as many rows as its source: each gets the result.
        """

    def reduce(
        self, source: Rows, target: Rows, reduction: int, root: int, *, name: int = 0
    ) -> None:
        """Reduce all rows into the one row of the target of member `root`.

        The targets of the others are scratch memory.
        """

    def reduce_scatter(
        self, source: Rows, target: Rows, reduction: int, *, name: int = 0
    ) -> None:
        """Give each replica its part of the reduction.

        The target is one row: the parts of the local replicas, one after the other.
        """

    def reduce_to_nodes(
        self,
        source: Rows,
        target: Rows,
        reduction: int,
        lengths: Sequence[int],
        base: int,
        *,
        name: int = 0,
    ) -> None:
        """Reduce the replicas of this group, a part of a larger job's, to their nodes.

        They are those from number `base` on. Of each node of spec.tree.nodes_of(),
        member i gets lengths[i] elements, after those of the members before it. The
        target has a row for each node, in the accumulation type: a node is not yet
        rounded, nor divided for a mean.
        """

    def complete_nodes(
        self, nodes: Rows, target: Rows, reduction: int, parts: Sequence[int]
    ) -> None:
        """Reduce the nodes of all parts of a job to the result.

        Not collective: no other member takes part.

        Args:
            nodes: A row for each node of the parts, in their order.
            target: Each row gets the result.
            parts: How many replicas each part has.
        """

    def broadcast(
        self,
        row: Rows,
        root: int,
        *,
        name: int = 0,
        prelude_to: Operation | None = None,
    ) -> None:
        """Overwrite the row with that of member `root`."""

    def all_gather(
        self,
        source: Rows,
        target: Rows,
        lengths: Sequence[int],
        *,
        name: int = 0,
        prelude_to: Operation | None = None,
    ) -> None:
        """Gather every member's row, lengths[i] bytes of member i, in the target."""

    def gather(
        self,
        source: Rows,
        target: Rows,
        lengths: Sequence[int],
        root: int,
        *,
        name: int = 0,
    ) -> None:
        """Gather every member's row in the target of member `root`."""

    def scatter(
        self,
        source: Rows,
        target: Rows,
        lengths: Sequence[int],
        root: int,
        *,
        name: int = 0,
    ) -> None:
        """Hand out the source of member `root`: lengths[i] bytes go to member i."""

    def all_to_all(self, source: Rows, target: Rows, *, name: int = 0) -> None:
        """Exchange parts: the source's leading axis has one part for each member."""

    def send(self, row: Rows, to: int) -> None:
        """Send a row to one member, which must receive one like it."""

    def receive(self, row: Rows, source: int) -> None:
        """Overwrite the row with the one that member `source` sends."""

    def barrier(self, name: int = 0) -> None:
        """Return when all members have called it."""

    def give_up(self, what: str, error: BaseException) -> None:
        """End the group for all members: `error` keeps this one from `what`."""

    def accelerate(
        self, take: Callable[..., None], usual: int, leading: bool, only: type | None
    ) -> bool:
        """Hand the core to a group's Reducer by `take`, where there is such a core.

        With `only`, it may take arrays of that type, and no others.

        Returns whether the group may call the Reducer's shortcuts for plain arrays.
        """

    def explain(self) -> Exception:
        """Return the error to raise for a shortcut that did not succeed."""
