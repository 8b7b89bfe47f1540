"""Groups of replicas: all of the job, or parts of it as GCL divides them.

A group's calls take an array with a leading axis, one row for each local replica.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from popdist.communicators import participants
from popdist.engine.group import Group
from popdist.session import STATE

# Any, because a handle stands for whatever its call returns.
Calls = Sequence[Any]


def replica_group(
    groups: Literal["consecutive", "orthogonal"] | None = None,
    size: int | None = None,
) -> "Group | ReplicaGroups":
    """Return the group of all replicas of the job, or this instance's part of some.

    All instances must call it, in the same order as their other collective calls:
    the first call for each set of instances blocks until they have come. Within
    execute_on_instances it is about the replicas of those instances, numbered anew
    from 0, and only those instances call it.

    With R replicas and size k, "consecutive" makes the groups of replicas 0 to k - 1,
    k to 2k - 1 and so on; "orthogonal" makes R / k groups, of which group j has the
    replicas j, j + R/k, j + 2R/k and so on. A call is then made in each group that
    this instance has replicas in.

    Args:
        groups: How the replicas are divided; None for one group of all.
        size: How many replicas each group has; must divide their number.

    Raises:
        ArenaError: The instances are on several hosts, or cannot share memory.
        ValueError: The replicas cannot be divided so.
    """
    members = participants()
    counts = STATE.rows(members)
    if groups is None and size is None:
        return STATE.group("replicas", members).view(counts)
    return ReplicaGroups(
        [
            (_group_of(replicas, members, counts), _local(replicas, members, counts))
            for replicas in _divided(sum(counts), groups, size)
            if _local(replicas, members, counts)
        ]
    )


class ReplicaGroups:
    """The groups of replicas, of several alike, that this instance has replicas in.

    Each call is made in one group after the other, in the order of their numbers.
    All instances must make the same calls in the same order.
    """

    def __init__(self, parts: Sequence[tuple[Group, Sequence[int]]]) -> None:
        self._parts = parts
        self._num_rows = sum(len(rows) for _, rows in parts)

    def __repr__(self) -> str:
        return f"<ReplicaGroups: {self._num_rows} rows in {len(self._parts)} groups>"

    def __len__(self) -> int:
        """Return how many replicas each of the groups has."""
        return len(self._parts[0][0])

    def all_reduce(
        self, x: Any, op: str = "sum", *, out: Any = None, **options: Any
    ) -> Any:
        """Reduce the arrays of each group's replicas, and give all of them the result.

        As a group's all_reduce, whose other options can be given; every row of the
        result is that of its own group.
        """
        async_op = options.pop("async_op", False)
        self._check(x)
        result = _like(x) if out is None else out
        self._check(result)
        calls = [
            group.all_reduce(
                _picked(x, rows),
                op,
                out=_picked(result, rows),
                async_op=async_op,
                **options,
            )
            for group, rows in self._parts
        ]
        return Handles(calls, lambda _: result) if async_op else result

    def broadcast(
        self, x: Any, root: int = 0, *, out: Any = None, async_op: bool = False
    ) -> Any:
        """Give all replicas of each group the array of its replica `root`."""
        self._check(x)
        result = _like(x) if out is None else out
        self._check(result)
        calls = [
            group.broadcast(
                _picked(x, rows), root, out=_picked(result, rows), async_op=async_op
            )
            for group, rows in self._parts
        ]
        return Handles(calls, lambda _: result) if async_op else result

    def all_gather(self, x: Any, *, async_op: bool = False) -> Any:
        """Return, for each local replica, the list of arrays of its group."""
        self._check(x)
        calls = [
            group.all_gather([x[row] for row in rows], async_op=async_op)
            for group, rows in self._parts
        ]
        return Handles(calls, self._by_row) if async_op else self._by_row(calls)

    def reduce_scatter(self, x: Any, op: str = "sum", *, async_op: bool = False) -> Any:
        """Reduce the arrays of each group, and give each of its replicas a part."""
        self._check(x)
        calls = [
            group.reduce_scatter([x[row] for row in rows], op, async_op=async_op)
            for group, rows in self._parts
        ]
        return Handles(calls, self._stacked) if async_op else self._stacked(calls)

    def barrier(self) -> None:
        """Return when all instances of each of the groups have called it."""
        for group, _ in self._parts:
            group.barrier()

    def _by_row(self, results: Calls) -> list[Any]:
        found: list[Any] = [None] * self._num_rows
        for (_, rows), result in zip(self._parts, results, strict=True):
            for row in rows:
                found[row] = result
        return found

    def _stacked(self, results: Calls) -> Any:
        found: list[Any] = [None] * self._num_rows
        for (_, rows), result in zip(self._parts, results, strict=True):
            for row, part in zip(rows, result, strict=True):
                found[row] = part
        return np.stack(found)

    def _check(self, x: Any) -> None:
        length = len(x) if isinstance(x, list) or np.ndim(x) else 0
        if length != self._num_rows:
            raise ValueError(
                f"{length} rows are given, but this instance has {self._num_rows} "
                "replicas in the groups. Give an array with a leading axis of that "
                "length, or a list of so many arrays."
            )


class Handles:
    """The calls of several groups that may still be under way."""

    def __init__(self, calls: Calls, join: Callable[[Calls], Any]) -> None:
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


def _divided(total: int, groups: str | None, size: int | None) -> list[range]:
    """Return the replicas of each group."""
    if groups not in ("consecutive", "orthogonal"):
        raise ValueError(
            f"groups is {groups!r}, but must be 'consecutive' or 'orthogonal', or left "
            "out together with size for one group of all replicas."
        )
    if size is None or size < 1 or total % size:
        raise ValueError(
            f"size is {size}, but must be a divisor of the {total} replicas that are "
            "divided into groups."
        )
    count = total // size
    if groups == "consecutive":
        return [range(j * size, (j + 1) * size) for j in range(count)]
    return [range(j, total, count) for j in range(count)]


def _shares(replicas: range, counts: Sequence[int]) -> list[list[int]]:
    """Return which rows of each member are of these replicas."""
    found, begin = [], 0
    for count in counts:
        found.append([row for row in range(count) if begin + row in replicas])
        begin += count
    return found


def _local(replicas: range, members: Sequence[int], counts: Sequence[int]) -> list[int]:
    return _shares(replicas, counts)[members.index(STATE.job.place.rank)]


def _group_of(replicas: range, members: Sequence[int], counts: Sequence[int]) -> Group:
    owners = [
        (member, len(share))
        for member, share in zip(members, _shares(replicas, counts), strict=True)
        if share
    ]
    group = STATE.group("replicas", tuple(member for member, _ in owners))
    return group.view([count for _, count in owners])


def _like(x: Any) -> Any:
    return (
        [np.empty_like(row) for row in x] if isinstance(x, list) else np.empty_like(x)
    )


def _picked(x: Any, rows: Sequence[int]) -> list[Any]:
    # With an ellipsis, rows without an axis are arrays that can be written, too.
    return [x[row] if isinstance(x, list) else x[row, ...] for row in rows]
