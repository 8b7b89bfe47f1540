"""The calls of several groups of replicas, made for all local replicas at once."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Self

import numpy as np

from popdist.engine.calls.rows import Array
from popdist.groups.rows import Found, Handles, Part, Parts


class ReplicaGroups:
    """The groups of replicas, of several alike, that this instance has replicas in.

    Each call is made in one group after the other, in the order of their numbers.
    All instances must make the same calls in the same order. Arrays have a leading
    axis, one row for each local replica, or come as a list of as many arrays; every
    row of a result is that of its own group. A root is a number within each group.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._rows = Parts(parts)

    def __repr__(self) -> str:
        rows = self.num_local_replicas
        return f"<ReplicaGroups: {rows} rows in {len(self._parts)} groups>"

    def __len__(self) -> int:
        """Return how many replicas each of the groups has."""
        return self.num_replicas

    @property
    def num_replicas(self) -> int:
        """How many replicas each of the groups has in all its members."""
        return self._parts[0].group.num_replicas

    @property
    def num_local_replicas(self) -> int:
        """How many replicas this instance has in all of the groups."""
        return self._rows.num_rows

    @property
    def last_algorithm(self) -> str:
        """How the last reduction was carried out, in the last of the groups."""
        return self._parts[-1].group.last_algorithm

    def all_reduce(
        self,
        x: Any,
        op: str = "sum",
        *,
        out: Any = None,
        async_op: bool = False,
        **options: Any,
    ) -> Any:
        """Reduce the arrays of each group's replicas, and give all of them the result.

        As a group's all_reduce, whose other options can be given.
        """
        rows, result, targets = self._rows.prepared(x, out)
        return self._each(
            lambda part: part.group.all_reduce(
                part.of(rows), op, out=part.of(targets), async_op=async_op, **options
            ),
            lambda _: result,
            async_op,
        )

    def grouped_all_reduce(
        self,
        arrays: Sequence[Any],
        op: str = "sum",
        *,
        out: Sequence[Any] | None = None,
        async_op: bool = False,
        **options: Any,
    ) -> Any:
        """Reduce many arrays as if they were one, and return a list of the results.

        What is in `out` may share memory with the array in the same place, and with
        no other one: later groups read that when this one has been written.
        """
        outs = [None] * len(arrays) if out is None else out
        if len(outs) != len(arrays):
            raise ValueError(
                f"{len(arrays)} arrays are given, but {len(outs)} to write to. Give "
                "one for each."
            )
        all_of_them = [
            self._rows.prepared(x, one) for x, one in zip(arrays, outs, strict=True)
        ]
        return self._each(
            lambda part: part.group.grouped_all_reduce(
                [part.of(rows) for rows, _, _ in all_of_them],
                op,
                out=[part.of(targets) for _, _, targets in all_of_them],
                async_op=async_op,
                **options,
            ),
            lambda _: [result for _, result, _ in all_of_them],
            async_op,
        )

    def broadcast(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Any = None,
        async_op: bool = False,
        **options: Any,
    ) -> Any:
        """Give all replicas of each group the array of its replica `root`."""
        rows, result, targets = self._rows.prepared(x, out)
        return self._each(
            lambda part: part.group.broadcast(
                part.of(rows), root, out=part.of(targets), async_op=async_op, **options
            ),
            lambda _: result,
            async_op,
        )

    def reduce(
        self,
        x: Any,
        op: str = "sum",
        root: int = 0,
        *,
        async_op: bool = False,
        **options: Any,
    ) -> Any:
        """Return, for each local replica, its group's result if it is the root.

        A list, with None for those that are not.
        """
        rows = self._rows.of(x)
        return self._each(
            lambda part: part.group.reduce(
                part.of(rows), op, root, async_op=async_op, **options
            ),
            lambda found: self._rows.at_roots(root, found),
            async_op,
        )

    def reduce_scatter(
        self, x: Any, op: str = "sum", *, async_op: bool = False, **options: Any
    ) -> Any:
        """Reduce the arrays of each group, and give each of its replicas a part.

        Where groups have unlike arrays, the result is a list of the rows.
        """
        rows = self._rows.of(x)
        return self._each(
            lambda part: part.group.reduce_scatter(
                part.of(rows), op, async_op=async_op, **options
            ),
            self._rows.joined,
            async_op,
        )

    def all_gather(self, x: Any, *, async_op: bool = False, **options: Any) -> Any:
        """Return, for each local replica, the list of arrays of its group."""
        rows = self._rows.of(x)
        return self._each(
            lambda part: part.group.all_gather(
                part.of(rows), async_op=async_op, **options
            ),
            self._rows.by_row,
            async_op,
        )

    def gather(
        self, x: Any, root: int = 0, *, async_op: bool = False, **options: Any
    ) -> Any:
        """Return, for each local replica, its group's arrays if it is the root.

        A list, with None for those that are not.
        """
        rows = self._rows.of(x)
        return self._each(
            lambda part: part.group.gather(
                part.of(rows), root, async_op=async_op, **options
            ),
            lambda found: self._rows.at_roots(root, found),
            async_op,
        )

    def scatter(
        self, x: Any, root: int = 0, *, async_op: bool = False, **options: Any
    ) -> Any:
        """Give each replica one of the arrays that the root of its group has.

        Where a root lives, x has an entry for each local replica: for a root, an array
        with a row for each replica of its group; others count for nothing and may be
        None. Elsewhere x is None. Where groups have unlike arrays, the result is a
        list of the rows.
        """
        blocks = self._rows.blocks(x, root)
        return self._each(
            lambda part: part.group.scatter(
                blocks.get(part.row_of(root)), root, async_op=async_op, **options
            ),
            self._rows.joined,
            async_op,
        )

    def all_to_all(self, x: Any, *, async_op: bool = False, **options: Any) -> Any:
        """Hand each replica its part of the array of each replica of its group.

        Where groups have unlike arrays, the result is a list of the rows.
        """
        rows = self._rows.of(x)
        return self._each(
            lambda part: part.group.all_to_all(
                part.of(rows), async_op=async_op, **options
            ),
            self._rows.joined,
            async_op,
        )

    def barrier(self, *, async_op: bool = False, **options: Any) -> Any:
        """Return when all instances of each of the groups have called it."""
        return self._each(
            lambda part: part.group.barrier(async_op=async_op, **options),
            lambda _: None,
            async_op,
        )

    def empty(self, shape: int | Sequence[int], dtype: Any = np.float32) -> Array:
        """Return a new array that lives in the arena of the first of the groups.

        Its rows of that group are reduced where they lie; those of a group among other
        instances are copied, as of any array.
        """
        return self._parts[0].group.empty(shape, dtype)

    def close(self) -> None:
        """Leave the groups, and give back their memory. Every member does so."""
        for part in self._parts:
            part.group.close()

    def __enter__(self) -> Self:
        """Return the groups, which are closed at the end of the `with` block."""
        return self

    def __exit__(self, *raised: Any) -> None:
        """Close the groups, also if the block has raised: see Group."""
        with ExitStack() as closing:
            for part in self._parts:
                closing.callback(part.group.__exit__, *raised)

    def _each(
        self,
        call: Callable[[Part], Any],
        join: Callable[[Found], Any],
        async_op: bool,
    ) -> Any:
        """Make a call in each group, and put together what they return."""
        found = [call(part) for part in self._parts]
        return Handles(found, join) if async_op else join(found)
