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
class Part:
    """One of the groups, as this instance sees it."""

    group: Group
    # The indices of this instance's rows in the group, in the order of its replicas.
    rows: Sequence[int]

    # Any, because the overload of a call depends on async_op.
    @property
    def calls(self) -> Any:
        """The group, to make calls of it."""
        return self.group

    def of(self, values: Sequence[T]) -> list[T]:
        """Select the group's values from one value for each local replica."""
        return [values[row] for row in self.rows]

    def row_of(self, root: int) -> int | None:
        """Return which row the group's replica `root` is; None if it is elsewhere."""
        local = root - sum(self.group.replicas[: self.group.rank])
        return self.rows[local] if 0 <= local < len(self.rows) else None

    def at_root(self, values: Mapping[int, T], root: int) -> T | None:
        """Return the value of the row that the group's replica `root` is, if any."""
        row = self.row_of(root)
        return None if row is None else values.get(row)


class Parts:
    """The parts of this instance, by the numbers of their groups.

    An array for the parts has a leading axis, one row for each local replica, or comes
    as a list of as many arrays. Groups make their calls one after the other, so a later
    group's input is copied if an earlier group overwrites it.
    """

    def __init__(self, parts: Sequence[Part], expects_marks: bool) -> None:
        self._parts = parts
        self._expects_marks = expects_marks
        self._size = parts[0].group.num_replicas
        self.num_rows = sum(len(part.rows) for part in parts)

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
        self._parts[0].group.owner_of(root)
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
        blocks = self._entries_of_roots(root, x, rule)
        if out is None:
            return blocks, None
        targets = self._targets(out)
        check_apart(targets)
        # Copies: the first group's result may be where a later one's block is.
        blocks = {row: np.array(block) for row, block in blocks.items()}
        for part in self._parts:
            block = part.at_root(blocks, root)
            if block is not None:
                for target in part.of(targets):
                    check_fits(target, block.shape[1:], block.dtype)
        return blocks, targets

    def at_roots(self, root: int, results: Results, out: Any) -> Any:
        """Return `out`; or each group's result in the place of its root, else None."""
        if out is not None:
            return out
        pairs = zip(self._parts, results, strict=True)
        return self._by_row({part.row_of(root): result} for part, result in pairs)

    def by_row(self, results: Results) -> list[Any]:
        """Return, for each local replica, the result of its group."""
        pairs = zip(self._parts, results, strict=True)
        return self._by_row(dict.fromkeys(part.rows, result) for part, result in pairs)

    def listed(self, results: Results) -> list[Array]:
        """Return for each local replica its row of its group's result."""
        pairs = zip(self._parts, results, strict=True)
        return self._by_row(
            dict(zip(part.rows, result, strict=True)) for part, result in pairs
        )

    def _by_row(self, values: Iterable[Mapping[int | None, Any]]) -> list[Any]:
        """Return the value of each row, of mappings from rows to values."""
        merged = {row: value for part in values for row, value in part.items()}
        return [merged.get(row) for row in range(self.num_rows)]

    def copied(self, outs: Mapping[int, Any]) -> None:
        """Copy the result of each group's first row to the group's other rows."""
        for part in self._parts:
            first, *rest = part.rows
            for row in rest:
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
        for part in self._parts:
            if (row := part.row_of(root)) is None:
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
        for part in self._parts:
            first = sum(part.group.replicas[: part.group.rank])
            for row in part.rows:
                for at, own in enumerate(part.rows if row in gathered else ()):
                    source = rows[own]
                    check_fits(gathered[row][first + at], source.shape, source.dtype)
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
