"""Say who has IPUs: user, job, host, since when. For refusals."""

import time
from collections.abc import Sequence

from poprun.vipu.inventory.rows import Transaction
from poprun.words import counted

# More than these are only counted.
MOST_NAMED = 4


def describe_users_of(
    db: Transaction, allocations: Sequence[str], besides: str = ""
) -> str:
    """Return a sentence about the partitions in some allocations, the largest first."""
    marks = ", ".join("?" * len(allocations))
    rows = db.execute(
        "SELECT p.name, p.size, p.owner, p.created, "
        "l.user, l.job, l.host, l.since "
        f"FROM partitions p LEFT JOIN leases l ON l.id = p.lease "
        f"WHERE p.allocation IN ({marks}) AND p.name <> ? ORDER BY p.size DESC, "
        "p.created",
        *allocations,
        besides,
    ).fetchall()
    if not rows:
        return ""
    parts = []
    for name, size, owner, created, *lease in rows[:MOST_NAMED]:
        if lease[0] is not None:
            who = _describe(*lease)
        elif holders := _leases_on(db, name):
            who = describe_lease(db, holders[0])
        else:
            who = f"kept by user {owner} since {when(created)}"
        parts.append(f"{name} ({counted(size, 'IPU')}, {who})")
    more = len(rows) - MOST_NAMED
    noun = "partition" if len(rows) == 1 else "partitions"
    rest = f" and {more} more" if more > 0 else ""
    return f"In use by {noun} {', '.join(parts)}{rest}. "


def describe_holders(
    db: Transaction, partition: str, but_for: str | None = None
) -> str:
    """Say who holds devices of a partition; empty if no other lease does."""
    leases = [lease for lease in _leases_on(db, partition) if lease != but_for]
    parts = [describe_lease(db, lease) for lease in leases[:MOST_NAMED]]
    more = len(leases) - MOST_NAMED
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")


def describe_lease(db: Transaction, lease: str) -> str:
    """Return `user alice, job 3f2a, host h1, since 2026-11-22 10:15:00`."""
    query = "SELECT user, job, host, since FROM leases WHERE id = ?"
    return _describe(*db.execute(query, lease).fetchone())


def _describe(user: str, job: str, host: str, since: float) -> str:
    return f"user {user}, job {job}, host {host}, since {when(since)}"


def when(seconds: float) -> str:
    """Write a time for people, in the time zone of this machine."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _leases_on(db: Transaction, partition: str) -> list[str]:
    query = "SELECT DISTINCT lease FROM devices WHERE partition = ? ORDER BY lease"
    return db.column(query, partition)
