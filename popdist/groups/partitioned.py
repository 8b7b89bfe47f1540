"""The calls of several groups of replicas, made for all local replicas at once."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from inspect import isfunction, signature
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from popdist.engine.calls.signatures import ReplicaGroupsCalls
from popdist.engine.group import Group
from popdist.groups.joined_handle import JoinedHandle
from popdist.groups.local_rows import LocalGroup, LocalRows, Results, Shape

T = TypeVar("T")


def with_signatures_of_groups(calls: type[T]) -> type[T]:
    """Give the methods of a class the signatures of a group's methods of the name."""
    for name, method in vars(calls).items():
        if isfunction(method) and not name.startswith("_"):
            # Any, because types of functions lack it.
            documented: Any = method
            documented.__signature__ = signature(getattr(Group, name))
    return calls


@with_signatures_of_groups
class PartitionedCalls:
    """The calls of ReplicaGroups, each made in one group after the other.

    `kwargs` are all else that the call of one group takes: async_op, name, algorithm.
    """

    def __init__(
        self, groups: Sequence[LocalGroup], expects_marks: bool = False
    ) -> None:
        """Make calls in these groups.

        Args:
            groups: The groups that have replicas of this instance.
            expects_marks: Warn of the first array without a mark that its rows are
                replicas' arrays (ReplicaRows).
        """
        self._groups = groups
        self._rows = LocalRows(groups, expects_marks)

    @property
    def num_replicas(self) -> int:
        """How many replicas each of the groups has in all its members."""
        return self._groups[0].group.num_replicas

    def all_reduce(
        self, x: Any, op: str = "sum", *, out: Any = None, **kwargs: Any
    ) -> Any:
        """Reduce the arrays of each group's replicas, and give all of them the result.

        See Group.all_reduce.
        """
        return self._alike("all_reduce", x, op, out=out, **kwargs)

    def grouped_all_reduce(
        self,
        arrays: Sequence[Any],
        op: str = "sum",
        *,
        out: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Reduce many arrays as if they were one, and return a list of the results.

        An array in `out` may share memory with the array in the same place, but with no
        other: later groups read the others after this one has been written.
        """
        outs = [None] * len(arrays) if out is None else out
        if len(outs) != len(arrays):
            raise ValueError(
                f"{len(arrays)} arrays are given, but {len(outs)} to write to. Give "
                "one for each."
            )
        prepared = list(map(self._rows.prepared, arrays, outs))
        return self._each(
            "grouped_all_reduce",
            lambda one: [one.of(rows) for rows, _, _ in prepared],
            lambda one: [one.of(targets) for _, _, targets in prepared],
            lambda _: [result for _, result, _ in prepared],
            op,
            **kwargs,
        )

    def broadcast(
        self, x: Any, root: int = 0, *, out: Any = None, **kwargs: Any
    ) -> Any:
        """Give all replicas of each group the array of its replica `root`."""
        return self._alike("broadcast", x, root, out=out, **kwargs)

    def reduce(
        self, x: Any, op: str = "sum", root: int = 0, *, out: Any = None, **kwargs: Any
    ) -> Any:
        """Return, for each local replica, its group's result if it is the root.

        The list has None for the other replicas. `out` also has an entry for each local
        replica; entries of replicas other than the root do not change, and may be None.
        """
        return self._to_root("reduce", x, op, root=root, out=out, **kwargs)

    def reduce_scatter(
        self, x: Any, op: str = "sum", *, out: Any = None, **kwargs: Any
    ) -> Any:
        """Reduce the arrays of each group, and give each of its replicas a share."""
        size = self.num_replicas

        def share_of(shape: Shape) -> Shape:
            # If the row cannot be shared equally, the group's call raises an error.
            return (shape[0] // size, *shape[1:]) if shape else ()

        return self._alike(
            "reduce_scatter", x, op, out=out, shape_of=share_of, apart=True, **kwargs
        )

    def all_gather(self, x: Any, *, out: Any = None, **kwargs: Any) -> Any:
        """Return, for each local replica, the list of arrays of its group.

        Replicas of one group share their list. `out` has an entry for each local
        replica, in the form of a group's all_gather.
        """
        rows, outs = self._rows.gathered(x, None, out)

        def join(results: Results) -> Any:
            self._rows.copied(outs)
            return self._rows.by_row(
                results, out, lambda one, result: [(row, result) for row in one.rows]
            )

        return self._each(
            "all_gather",
            lambda one: one.of(rows),
            lambda one: outs.get(one.rows[0]),
            join,
            **kwargs,
        )

    def gather(self, x: Any, root: int = 0, *, out: Any = None, **kwargs: Any) -> Any:
        """Return, for each local replica, its group's arrays if it is the root.

        The list has None for the other replicas. `out` has the form for all_gather;
        entries of replicas other than the root do not change, and may be None.
        """
        return self._to_root("gather", x, root=root, out=out, **kwargs)

    def scatter(self, x: Any, root: int = 0, *, out: Any = None, **kwargs: Any) -> Any:
        """Give each replica one of the arrays of its group's root.

        If a root is local, x has an entry for each local replica. A root's entry is an
        array with a row for each replica of its group; other entries are ignored and
        may be None. If no root is local, x is None. The result is a list with an array
        for each local replica, or `out`.
        """
        root = self._rows.replica(root)
        arrays, targets = self._rows.scattered(x, root, out)
        return self._each(
            "scatter",
            lambda one: one.at_root(arrays, root),
            lambda one: one.of(targets) if targets else None,
            lambda results: self._rows.by_row(
                results, out, lambda one, result: zip(one.rows, result, strict=True)
            ),
            root,
            **kwargs,
        )

    def all_to_all(self, x: Any, *, out: Any = None, **kwargs: Any) -> Any:
        """Exchange parts within each group, as Group.all_to_all does."""
        return self._alike("all_to_all", x, out=out, apart=True, **kwargs)

    def barrier(self, **kwargs: Any) -> Any:
        """Return when all instances of each of the groups have called it."""
        results: Results = [one.group.barrier(**kwargs) for one in self._groups]
        return JoinedHandle(results, lambda _: None) if results[0] is not None else None

    def empty(self, shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> Any:
        """Return a new array in the arena of the first of the groups.

        Rows that belong to the first group are reduced in place. Rows of a group among
        other instances are copied, like any array.
        """
        return self._groups[0].group.empty(shape, dtype)

    def _alike(
        self,
        operation: str,
        x: Any,
        *arguments: Any,
        out: Any,
        shape_of: Callable[[Shape], Shape] = tuple,
        apart: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Make calls in which every replica gives an array and gets one."""
        rows, result, targets = self._rows.prepared(x, out, shape_of, apart)
        return self._each(
            operation,
            lambda one: one.of(rows),
            lambda one: one.of(targets),
            lambda _: result,
            *arguments,
            **kwargs,
        )

    def _to_root(
        self,
        operation: str,
        x: Any,
        *arguments: Any,
        root: int,
        out: Any,
        **kwargs: Any,
    ) -> Any:
        """Make calls in which every replica gives an array, and the root gets one."""
        root = self._rows.replica(root)
        prepare = self._rows.reduced if operation == "reduce" else self._rows.gathered
        rows, outs = prepare(x, root, out)
        return self._each(
            operation,
            lambda one: one.of(rows),
            lambda one: one.at_root(outs, root),
            lambda results: self._rows.by_row(
                results, out, lambda one, result: [(one.row_of(root), result)]
            ),
            *(*arguments, root),
            **kwargs,
        )

    def _each(
        self,
        operation: str,
        x_of: Callable[[LocalGroup], Any],
        out_of: Callable[[LocalGroup], Any],
        join: Callable[[Results], Any],
        *arguments: Any,
        async_op: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Make a call in each group, and put together what they return.

        Args:
            x_of: Returns the array or arrays that a group's call takes.
            out_of: Returns what it writes to.
            arguments: Further arguments, the same in each group.
        """
        results = [
            getattr(one.group, operation)(
                x_of(one), *arguments, out=out_of(one), async_op=async_op, **kwargs
            )
            for one in self._groups
        ]
        return JoinedHandle(results, join) if async_op else join(results)


# The first base has the types of the calls, and the other carries them out. The type of
# a result is different with async_op=True.
class ReplicaGroups(ReplicaGroupsCalls, PartitionedCalls):  # type: ignore[misc]
    """The groups with replicas of this instance, among several groups of equal size.

    Each call is made in one group after the other, in the order of their numbers. All
    instances must make the same calls in the same order. Arrays have a leading axis
    with a row for each local replica, or are a list with an array for each; each row of
    a result comes from its replica's group. A root is a number within each group.
    """

    def __repr__(self) -> str:
        rows = self.num_local_replicas
        return f"<ReplicaGroups: {rows} rows in {len(self._groups)} groups>"

    def __len__(self) -> int:
        """Return how many replicas each of the groups has."""
        return self.num_replicas

    @property
    def num_local_replicas(self) -> int:
        """How many replicas this instance has in all of the groups."""
        return self._rows.num_rows

    @property
    def last_algorithm(self) -> str:
        """The algorithm of the last reduction in the last of the groups."""
        return self._groups[-1].group.last_algorithm

    def close(self) -> None:
        """Leave the groups, and release their memory. Every member must call it."""
        for one in self._groups:
            one.group.close()

    def __enter__(self) -> Self:
        """Return the groups, which are closed at the end of the `with` block."""
        return self

    def __exit__(self, *raised: Any) -> None:
        """Close the groups, also if the block has raised: see Group."""
        with ExitStack() as closing:
            for one in self._groups:
                closing.callback(one.group.__exit__, *raised)
