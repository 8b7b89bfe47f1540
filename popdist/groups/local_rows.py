"""The rows of local replicas, distributed over the replicas' groups."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, TypeVar

import numpy as np

from popdist.engine.calls.array_rows import (
    Array,
    ReplicaRows,
    warn_of_unmarked_rows,
    written,
    wrong_rows,
)
from popdist.engine.calls.destinations import check_apart, check_fits, out_arrays
from popdist.engine.group import Group

T = TypeVar("T")

# The results of the groups' calls, one after the other. Any, because the operations
# have results of different types.
Results = Sequence[Any]
Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalGroup:
    """One of the groups, as this instance sees it."""

    group: Group
    # The indices of this instance's rows in the group, in the order of its replicas.
    rows: Sequence[int]

    @property
    def first(self) -> int:
        """The number in the group of the first local replica."""
        return sum(self.group.replicas[: self.group.rank])

    def of(self, values: Sequence[T]) -> list[T]:
        """Select the group's values from one value for each local replica."""
        return [values[row] for row in self.rows]

    def row_of(self, root: int) -> int | None:
        """Return which row the group's replica `root` is; None if it is elsewhere."""
        local = root - self.first
        return self.rows[local] if 0 <= local < len(self.rows) else None

    def at_root(self, values: Mapping[int, T], root: int) -> T | None:
        """Return the value of the row that the group's replica `root` is, if any."""
        row = self.row_of(root)
        return None if row is None else values.get(row)


class LocalRows:
    """The rows of the local replicas, each of which belongs to one of the groups.

    An array for them has a leading axis, one row for each local replica, or comes as a
    list of as many arrays. Groups make their calls one after the other, so a later
    group's input is copied if an earlier group overwrites it.
    """

    def __init__(self, groups: Sequence[LocalGroup], expects_marks: bool) -> None:
        self._groups = groups
        self._expects_marks = expects_marks
        self._size = groups[0].group.num_replicas
        self.num_rows = sum(len(one.rows) for one in groups)

    def of(self, x: Any) -> list[Array]:
        """Return the array of each local replica."""
        if isinstance(x, list | tuple):
            rows = [np.asarray(row) for row in x]
        else:
            rows = _split(np.asarray(x))
        self._check(len(rows))
        if self._expects_marks and not isinstance(x, list | tuple | ReplicaRows):
            self._expects_marks = False
            warn_of_unmarked_rows(np.asarray(x), self.num_rows)
        return rows

    def replica(self, root: int) -> int:
        """Return a root, if each of the groups has such a replica."""
        self._groups[0].group.owner_of(root)
        return index(root)

    def prepared(
        self,
        x: Any,
        out: Any,
        shape_of: Callable[[Shape], Shape] = tuple,
        apart: bool = False,
    ) -> tuple[list[Array], Any, list[Array]]:
        """Return the arrays to read, the result for the caller, and its rows to write.

        Args:
            shape_of: Returns the shape of the result of a row, of the row's shape.
            apart: Whether results differ, so that none may share memory with another.
        """
        rows = self.of(x)
        if out is not None:
            result, targets = out, self._targets(out)
            for row, target in zip(rows, targets, strict=True):
                check_fits(target, shape_of(row.shape), row.dtype)
            rows = self._apart(rows, {i: [target] for i, target in enumerate(targets)})
        elif isinstance(x, list | tuple):
            result = targets = [
                np.empty(shape_of(row.shape), row.dtype) for row in rows
            ]
        else:
            result = np.empty((len(rows), *shape_of(rows[0].shape)), rows[0].dtype)
            targets = _split(result)
        if apart:
            check_apart(targets)
        return rows, result, targets

    def reduced(
        self, x: Any, root: int, out: Any
    ) -> tuple[list[Array], dict[int, Any]]:
        """Return the arrays to read, and the local roots' arrays for results."""
        rows = self.of(x)
        outs = self._of_roots(root, out)
        for row, array in outs.items():
            check_fits(written(array), rows[row].shape, rows[row].dtype)
        check_apart(list(outs.values()))
        return self._apart(rows, {row: [array] for row, array in outs.items()}), outs

    def gathered(
        self, x: Any, root: int | None, out: Any
    ) -> tuple[list[Array], dict[int, Any]]:
        """Return the arrays to read, and the local replicas' or roots' results."""
        rows = self.of(x)
        if root is not None or out is None:
            outs = self._of_roots(root or 0, out)
        else:
            self._check_entries(out)
            outs = dict(enumerate(out))
        return self._apart(rows, self._collected(rows, outs)), outs

    def scattered(
        self, x: Any, root: int, out: Any
    ) -> tuple[dict[int, Any], list[Array] | None]:
        """Return the local roots' arrays to scatter, and the arrays for results."""
        rule = (
            "has nothing to scatter. Give an entry for each local replica, which for a "
            f"root is an array with a leading axis of {self._size}."
        )
        if x is not None and not isinstance(x, list | tuple):
            x = np.asarray(x)
        arrays = self._entries_of_roots(root, x, rule)
        if out is None:
            return arrays, None
        targets = self._targets(out)
        check_apart(targets)
        # Copies: the first group's result may be where a later one's array is.
        arrays = {row: np.array(array) for row, array in arrays.items()}
        for one in self._groups:
            if (array := one.at_root(arrays, root)) is not None:
                for target in one.of(targets):
                    check_fits(target, array.shape[1:], array.dtype)
        return arrays, targets

    def by_row(
        self,
        results: Results,
        out: Any,
        rows_of: Callable[[LocalGroup, Any], Iterable[tuple[int | None, Any]]],
    ) -> Any:
        """Return `out`, or a value for each local replica; None where there is none.

        Args:
            rows_of: Returns pairs of rows and values, of a group and its result.
        """
        if out is not None:
            return out
        pairs = zip(self._groups, results, strict=True)
        values = dict(pair for one, result in pairs for pair in rows_of(one, result))
        return [values.get(row) for row in range(self.num_rows)]

    def copied(self, outs: Mapping[int, Any]) -> None:
        """Copy the result of each group's first row to the group's other rows."""
        for one in self._groups:
            first, *rest = one.rows
            for row in rest if outs else ():
                for to, source in zip(outs[row], outs[first], strict=True):
                    to[...] = source

    def _targets(self, out: Any) -> list[Array]:
        """Return the array that is written for each local replica."""
        if isinstance(out, list | tuple):
            targets = [written(row) for row in out]
        else:
            targets = _split(written(out))
        self._check(len(targets))
        return targets

    def _of_roots(self, root: int, out: Any) -> dict[int, Any]:
        """Return the entries of `out` for the local roots, by their rows."""
        if out is None:
            return {}
        rule = "out[{row}] is None. Give an array there, or no out."
        return self._entries_of_roots(root, out, rule)

    def _entries_of_roots(self, root: int, x: Any, missing: str) -> dict[int, Any]:
        """Return the entries of the local roots, by their rows.

        Args:
            missing: The error for an entry {row} that is None, with the way out.
        """
        if x is not None:
            self._check_entries(x)
        entries: dict[int, Any] = {}
        for one in self._groups:
            if (row := one.row_of(root)) is None:
                continue
            if isinstance(x, np.ndarray):
                # With an ellipsis, an entry without an axis can be written, too.
                entries[row] = x[row, ...]
            elif x is not None and x[row] is not None:
                entries[row] = x[row]
            else:
                rule = missing.format(row=row)
                raise ValueError(
                    f"Local replica {row} is the root of its group, but {rule}"
                )
        return entries

    def _collected(
        self, rows: Sequence[Array], outs: Mapping[int, Any]
    ) -> dict[int, list[Array]]:
        """Return the arrays that replicas gather in, if their own ones fit."""
        gathered = {row: out_arrays(out, self._size) for row, out in outs.items()}
        check_apart([array for arrays in gathered.values() for array in arrays])
        for one in self._groups:
            for row in gathered.keys() & set(one.rows):
                for at, own in enumerate(one.rows, one.first):
                    check_fits(gathered[row][at], rows[own].shape, rows[own].dtype)
        return gathered

    def _apart(
        self, rows: list[Array], written_rows: Mapping[int, Sequence[Array]]
    ) -> list[Array]:
        """Return the rows, or copies if another row's result overwrites one."""
        overlapping = any(
            np.may_share_memory(row, target)
            for i, row in enumerate(rows)
            for j, targets in written_rows.items()
            for target in targets
            if i != j
        )
        return [row.copy() for row in rows] if overlapping else rows

    def _check_entries(self, x: Any) -> None:
        """Check that x has an entry for each local replica."""
        self._check(len(x) if isinstance(x, list | tuple) or np.ndim(x) else 0)

    def _check(self, length: int) -> None:
        if length != self.num_rows:
            raise wrong_rows(length, self.num_rows)


def _split(x: Array) -> list[Array]:
    # With an ellipsis, rows without an axis are arrays that can be written, too.
    return [x[row, ...] for row in range(len(x))] if x.ndim else []
