"""Groups of replicas: all of the job, or parts of it as GCL divides them.

A group's calls take popdist.rows(x), where x has a leading axis, one row for each local
replica; or a list of as many arrays.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Literal, overload

import numpy as np

from popdist.communicators import participants
from popdist.engine.calls.array_rows import is_first_of_several
from popdist.engine.group import Group
from popdist.groups.local_rows import LocalGroup
from popdist.groups.partitioned import ReplicaGroups
from popdist.session import STATE


@overload
def replica_group(groups: None = None, size: None = None) -> Group: ...
@overload
def replica_group(
    groups: Literal["consecutive", "orthogonal"], size: int
) -> ReplicaGroups: ...
def replica_group(
    groups: Literal["consecutive", "orthogonal"] | None = None,
    size: int | None = None,
) -> Group | ReplicaGroups:
    """Return the group of all replicas of the job, or groups that divide them.

    All instances must call it, in the same order as their other collective calls: the
    first call for each set of instances blocks until all of them have made it. Within
    execute_on_instances() the group consists of the chosen instances' replicas,
    numbered from 0, and only these instances call it.

    With R replicas and size k, "consecutive" makes the groups of replicas 0 to k - 1, k
    to 2k - 1 and so on. "orthogonal" makes R / k groups: group j has the replicas j, j
    + R/k, j + 2R/k and so on. A call is then made in each group with a replica of this
    instance. A root is a replica's number in its group, from 0, and applies to all
    groups.

    Args:
        groups: The division of the replicas; None for one group of all replicas.
        size: The number of replicas in each group: a divisor of the number of all
            replicas.

    Raises:
        ArenaError: The instances of a host cannot share memory.
        ValueError: The replicas cannot be divided in this way.
    """
    members = participants()
    counts = replicas_of(members)
    if groups is None and size is None:
        return STATE.group("replicas", members).view(counts, expects_marks=True)
    rank = members.index(STATE.job.place.rank)
    divided = [_rows_of(each, counts) for each in _divided(sum(counts), groups, size)]
    return ReplicaGroups(
        [_local_group(rows, members, rank) for rows in divided if rows[rank]],
        expects_marks=is_first_of_several(rank, counts),
    )


def replicas_of(members: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of replicas of each of these instances.

    Where not all of the job have the same, the first call for the same members is
    collective, and all of them must make it.
    """
    instance = STATE.job.instance
    if instance.uniform:
        return (instance.num_local_replicas,) * len(members)
    return STATE.once(("replicas of", members), lambda: _gather_replicas(members))


def _gather_replicas(members: tuple[int, ...]) -> tuple[int, ...]:
    # The environment does not tell the replicas of other instances.
    own = np.array([STATE.job.instance.num_local_replicas], np.int64)
    group = STATE.group("replicas", members)
    return tuple(int(count[0]) for count in group.all_gather(own))


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


def _rows_of(replicas: range, counts: Sequence[int]) -> list[list[int]]:
    """Return the indices of each member's rows that belong to these replicas."""
    starts = accumulate(counts, initial=0)
    return [
        [row for row in range(count) if start + row in replicas]
        for start, count in zip(starts, counts, strict=False)
    ]


def _local_group(
    rows: Sequence[Sequence[int]], members: Sequence[int], rank: int
) -> LocalGroup:
    """Return the group of these rows of each member, as member `rank` sees it."""
    owners = tuple(member for member, own in zip(members, rows, strict=True) if own)
    counts = [len(own) for own in rows if own]
    group = STATE.group("replicas", owners).view(counts)
    return LocalGroup(group=group, rows=rows[rank])
