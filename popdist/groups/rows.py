"""The rows of local replicas, shared out among the groups that they are of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from popdist.engine.calls.rows import Array, written, wrong_rows
from popdist.engine.group import Group

T = TypeVar("T")

# What the groups' calls return, one after the other. Any, because every operation
# returns what its own docstring says, or a handle of it.
Found = Sequence[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One of the groups, as this instance sees it."""

    group: Group
    # Which of this instance's rows are of the group, in the order of its replicas.
    rows: Sequence[int]

    def of(self, values: Sequence[T]) -> list[T]:
        """Return, of a value for each local replica, those of the group's."""
        return [values[row] for row in self.rows]

    def row_of(self, root: int) -> int | None:
        """Return which row the group's replica `root` is; None if it is elsewhere."""
        local = root - sum(self.group.replicas[: self.group.rank])
        return self.rows[local] if 0 <= local < len(self.rows) else None


class Parts:
    """The parts of this instance, by the numbers of their groups.

    An array of theirs has a leading axis, one row for each local replica, or comes as
    a list of as many arrays.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self.num_rows = sum(len(part.rows) for part in parts)

    def of(self, x: Any) -> list[Array]:
        """Return the array of each local replica."""
        if isinstance(x, list | tuple):
            rows = [np.asarray(row) for row in x]
        else:
            rows = _split(np.asarray(x))
        self._check(len(rows))
        return rows

    def prepared(self, x: Any, out: Any) -> tuple[list[Array], Any, list[Array]]:
        """Return what is read, what the caller gets, and what of that is written."""
        rows = self.of(x)
        if out is not None:
            targets = (
                [written(row) for row in out]
                if isinstance(out, list | tuple)
                else _split(written(out))
            )
            self._check(len(targets))
            return _apart(rows, targets), out, targets
        if isinstance(x, list | tuple):
            made = [np.empty(row.shape, row.dtype) for row in rows]
            return rows, made, made
        whole = np.empty((len(rows), *rows[0].shape), rows[0].dtype)
        return rows, whole, _split(whole)

    def blocks(self, x: Any, root: int) -> dict[int | None, Any]:
        """Return, by their rows, what the roots among our replicas have to scatter."""
        roots = [part.row_of(root) for part in self._parts]
        if x is not None:
            x = x if isinstance(x, list | tuple) else np.asarray(x)
            self._check(len(x) if isinstance(x, list | tuple) or x.ndim else 0)
        blocks: dict[int | None, Any] = {
            row: x[row] for row in roots if row is not None and x is not None
        }
        for row in roots:
            if row is not None and blocks.get(row) is None:
                raise ValueError(
                    f"Local replica {row} is the root of its group, but has nothing to "
                    "scatter. Give an entry for each local replica, which for a root "
                    f"is an array with a leading axis of {len(self._parts[0].group)}."
                )
        return blocks

    def at_roots(self, root: int, found: Found) -> list[Any]:
        """Return each group's result in the place of its root, and None elsewhere."""
        results: list[Any] = [None] * self.num_rows
        for part, result in zip(self._parts, found, strict=True):
            if (row := part.row_of(root)) is not None:
                results[row] = result
        return results

    def by_row(self, found: Found) -> list[Any]:
        """Return, for each local replica, the result of its group."""
        results: list[Any] = [None] * self.num_rows
        for part, result in zip(self._parts, found, strict=True):
            for row in part.rows:
                results[row] = result
        return results

    def joined(self, found: Found) -> Array | list[Array]:
        """Return, for each local replica, its row of what its group's call gave."""
        results: list[Any] = [None] * self.num_rows
        for part, result in zip(self._parts, found, strict=True):
            for row, own in zip(part.rows, result, strict=True):
                results[row] = own
        alike = len({(row.shape, row.dtype) for row in results}) == 1
        return np.stack(results) if alike else results

    def _check(self, length: int) -> None:
        if length != self.num_rows:
            raise wrong_rows(length, self.num_rows)


class Handles:
    """The calls of several groups that may still be under way."""

    def __init__(self, calls: Found, join: Callable[[Found], Any]) -> None:
        self._calls = calls
        self._join = join

    def test(self) -> bool:
        """Return whether all of the calls have come to their end. Never blocks."""
        return all(call.test() for call in self._calls)

    def wait(self) -> Any:
        """Block until all of them have come to their end, and return the result."""
        return self._join([call.wait() for call in self._calls])

    def result(self) -> Any:
        """Return the result of calls that have come to their end.

        Raises:
            RuntimeError: They have not; use wait() to block until they have.
        """
        return self._join([call.result() for call in self._calls])


def _split(x: Array) -> list[Array]:
    # With an ellipsis, rows without an axis are arrays that can be written, too.
    return [x[row, ...] for row in range(len(x))] if x.ndim else []


def _apart(rows: list[Array], targets: Sequence[Array]) -> list[Array]:
    """Return the rows, or copies if results overwrite what later groups read."""
    met = any(
        np.may_share_memory(row, target)
        for i, row in enumerate(rows)
        for j, target in enumerate(targets)
        if i != j
    )
    return [row.copy() for row in rows] if met else rows
