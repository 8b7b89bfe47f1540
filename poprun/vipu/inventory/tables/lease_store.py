"""Leases in the database: who holds IPUs, and what goes when a holder is gone."""

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from poprun.vipu import liveness
from poprun.vipu.errors import (
    LeaseEndedError,
    NameTakenError,
    VipuRuleError,
)
from poprun.vipu.inventory.sqlite import Connection
from poprun.vipu.inventory.tables.partition_store import delete_partition
from poprun.vipu.leases import Holder, Lease, Life, ProcessIdentity, check_holder
from poprun.vipu.liveness import Observer

LONGEST_LEASE_S = 24 * 3600.0
# The clock of the leases is not written more often to find out whether some have ended.
CLOCK_DUE_S = 1.0
LIVELIEST = (Life.ALIVE, Life.UNKNOWN, Life.DEAD)
COLUMNS = (
    "leases.id, leases.user, leases.job, leases.host, leases.pid, "
    "leases.start_time, leases.boot_id, leases.pid_namespace, leases.since, "
    "leases.lease_s"
)


def open_lease(
    db: Connection, holder: Holder, lease_s: float, now: float, lease_id: str = ""
) -> Lease:
    """Make a lease that nothing is held by yet; `now` is on the clock of the leases.

    Raises:
        VipuRuleError: The holder, the time or the id is not valid.
        NameTakenError: There is a lease with this id.
    """
    check_holder(holder)
    _check_new_id(db, lease_id)
    if not 1 <= lease_s <= LONGEST_LEASE_S:
        raise VipuRuleError(
            f"A lease cannot live for {lease_s:g} s, but for 1 to {LONGEST_LEASE_S:g}."
        )
    lease = Lease(
        id=lease_id or os.urandom(16).hex(),
        holder=holder,
        since=time.time(),
        lease_s=lease_s,
    )
    process = holder.process
    db.execute(
        "INSERT INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            lease.id,
            holder.user,
            holder.job,
            holder.host,
            process.pid,
            process.start_time,
            process.boot_id,
            process.pid_namespace,
            lease.since,
            lease_s,
            now + lease_s,
        ),
    )
    return lease


def _check_new_id(db: Connection, lease_id: str) -> None:
    if lease_id and (len(lease_id) != 32 or set(lease_id) - set("0123456789abcdef")):
        raise VipuRuleError(
            f"{lease_id[:40]!r} is no id of a lease: use 32 hexadecimal digits."
        )
    if db.execute("SELECT 1 FROM leases WHERE id = ?", (lease_id,)).fetchone():
        raise NameTakenError(f"There is a lease {lease_id} already. Draw another id.")


def get_lease(db: Connection, lease: str) -> Lease:
    row = db.execute(f"SELECT {COLUMNS} FROM leases WHERE id = ?", (lease,)).fetchone()
    if row is None:
        raise LeaseEndedError(
            "The job's lease of its IPUs has ended, so that others may have them. It "
            "was not renewed in time, or the partition was removed with --force. Start "
            "the job again."
        )
    return as_lease(row)


def list_leases(db: Connection) -> tuple[Lease, ...]:
    rows = db.execute(f"SELECT {COLUMNS} FROM leases ORDER BY since, id").fetchall()
    return tuple(map(as_lease, rows))


def renew(db: Connection, lease: str, now: float) -> Lease:
    found = get_lease(db, lease)
    db.execute("UPDATE leases SET ends = ? WHERE id = ?", (now + found.lease_s, lease))
    return found


def end_lease(db: Connection, lease: str) -> None:
    """End a lease; to end one that has ended does nothing.

    A partition that was made for it goes, unless another job has devices of it: then
    it goes with that job.
    """
    db.execute("DELETE FROM devices WHERE lease = ?", (lease,))
    made = db.execute("SELECT name FROM partitions WHERE lease = ?", (lease,))
    for (name,) in made.fetchall():
        heir = db.execute(
            "SELECT lease FROM devices WHERE partition_name = ? LIMIT 1", (name,)
        ).fetchone()
        if heir is None:
            delete_partition(db, name)
        else:
            db.execute("UPDATE partitions SET lease = ? WHERE name = ?", (*heir, name))
    db.execute("DELETE FROM leases WHERE id = ?", (lease,))


def advance_clock(db: Connection, longest_step_s: float) -> float:
    """Return what the clock of the leases shows now, in seconds.

    It counts the time in which holders could renew their leases, because none must end
    while they cannot: the server is down or stopped, the database locked, the machine
    asleep. So of the time since it was last read only so much counts as is sure.

    Args:
        longest_step_s: How much of that time counts at most.
    """
    shown, boot_id, read_at = _read_clock(db)
    now = liveness.time_since_boot()
    if boot_id == liveness.boot_id():
        shown += min(max(0.0, now - read_at), longest_step_s)
    db.execute(
        "UPDATE lease_clock SET reachable_s = ?, boot_id = ?, read_at = ?",
        (shown, liveness.boot_id(), now),
    )
    return shown


def _read_clock(db: Connection) -> tuple[float, str, float]:
    row = db.execute("SELECT reachable_s, boot_id, read_at FROM lease_clock").fetchone()
    return float(row[0]), row[1], float(row[2])


def may_end(db: Connection, observer: Observer) -> bool:
    """Return whether `end_dead` could find anything: most often it could not."""
    lives = {life for _, _, life in _lives(db, observer)}
    if Life.DEAD in lives:
        return True
    _, _, read_at = _read_clock(db)
    is_clock_due = abs(liveness.time_since_boot() - read_at) >= CLOCK_DUE_S
    return Life.UNKNOWN in lives and is_clock_due


def end_dead(db: Connection, observer: Observer, now: float) -> tuple[Lease, ...]:
    """End the leases of holders that are gone, and return them.

    An instance may live a little longer than the poprun that held the lease: a lease
    lives as long as a process that is attached by it.

    Args:
        now: What the clock of the leases shows.
    """
    dead = [
        get_lease(db, lease)
        for lease, ends, life in _lives(db, observer)
        if life is Life.DEAD or (life is Life.UNKNOWN and ends <= now)
    ]
    for lease in dead:
        end_lease(db, lease.id)
    return tuple(dead)


def _lives(db: Connection, observer: Observer) -> Iterator[tuple[str, float, Life]]:
    """Iterate over all leases: the id, when it ends, the life of its processes."""
    rows = db.execute(
        "SELECT id, ends, host, pid, start_time, boot_id, pid_namespace FROM leases"
    ).fetchall()
    for lease, ends, host, *process in rows:
        life = observer.life(as_process(process), host)
        if life is not Life.ALIVE:
            others = [observer.life(other, host) for other in _attached(db, lease)]
            life = min(life, *others, key=LIVELIEST.index) if others else life
        yield lease, ends, life


def _attached(db: Connection, lease: str) -> list[ProcessIdentity]:
    rows = db.execute(
        "SELECT pid, start_time, boot_id, pid_namespace FROM devices "
        "WHERE lease = ? AND pid IS NOT NULL",
        (lease,),
    )
    return [as_process(row) for row in rows]


def as_process(row: Sequence[Any]) -> ProcessIdentity:
    pid, start_time, boot_id, pid_namespace = row
    return ProcessIdentity(
        pid=int(pid),
        start_time=int(start_time),
        boot_id=boot_id,
        pid_namespace=pid_namespace,
    )


def as_lease(row: tuple[Any, ...]) -> Lease:
    return Lease(
        id=row[0],
        holder=Holder(
            user=row[1], job=row[2], host=row[3], process=as_process(row[4:8])
        ),
        since=float(row[8]),
        lease_s=float(row[9]),
    )
