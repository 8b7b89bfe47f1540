"""Leases in the database: who holds IPUs, and what goes when a holder is gone."""

import os
import time
from typing import Any

from poprun.vipu import liveness
from poprun.vipu.inventory.sqlite import Connection
from poprun.vipu.inventory.tables.partition_store import delete_partition
from poprun.vipu.leases import Holder, Lease, Life, ProcessIdentity, check_holder
from poprun.vipu.vipu_errors import (
    LeaseEndedError,
    NameTakenError,
    VipuRuleError,
)

LONGEST_LEASE_S = 24 * 3600.0
COLUMNS = (
    "leases.id, leases.user, leases.job, leases.host, leases.pid, "
    "leases.start_time, leases.boot_id, leases.pid_namespace, leases.since, "
    "leases.lease_s"
)


def open_lease(
    db: Connection, holder: Holder, lease_s: float, lease_id: str = ""
) -> Lease:
    """Make a lease that nothing is held by yet.

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
            _now() + lease_s,
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
            "The job's lease of its IPUs has ended, so that others may have them. The "
            "job was not renewing it, or it was released. Start the job again."
        )
    return as_lease(row)


def list_leases(db: Connection) -> tuple[Lease, ...]:
    rows = db.execute(f"SELECT {COLUMNS} FROM leases ORDER BY since, id").fetchall()
    return tuple(map(as_lease, rows))


def renew(db: Connection, lease: str) -> Lease:
    found = get_lease(db, lease)
    db.execute(
        "UPDATE leases SET ends = ? WHERE id = ?", (_now() + found.lease_s, lease)
    )
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


def note_boot(db: Connection) -> None:
    """Let leases live for their time again after a reboot, which the clock forgot."""
    row = db.execute("SELECT id FROM boot").fetchone()
    if row == (liveness.boot_id(),):
        return
    db.execute("DELETE FROM boot")
    db.execute("INSERT INTO boot VALUES (?)", (liveness.boot_id(),))
    db.execute("UPDATE leases SET ends = ? + lease_s", (_now(),))


def is_of_this_boot(db: Connection) -> bool:
    return bool(db.execute("SELECT id FROM boot").fetchone() == (liveness.boot_id(),))


def find_dead(db: Connection, this_host: str) -> tuple[Lease, ...]:
    """Return the leases of holders that are gone.

    An instance may live a little longer than the poprun that held the lease: a lease
    lives as long as a process that is attached by it.
    """
    now = _now()
    rows = db.execute(f"SELECT {COLUMNS}, ends FROM leases").fetchall()
    dead = []
    for *columns, ends in rows:
        lease = as_lease(tuple(columns))
        if not _lives(lease.holder.process, lease, ends, now, this_host) and not any(
            _lives(process, lease, ends, now, this_host)
            for process in _attached(db, lease.id)
        ):
            dead.append(lease)
    return tuple(dead)


def end_dead(db: Connection, this_host: str) -> tuple[Lease, ...]:
    """End the leases of holders that are gone, and return them."""
    dead = find_dead(db, this_host)
    for lease in dead:
        end_lease(db, lease.id)
    return dead


def _lives(
    process: ProcessIdentity, lease: Lease, ends: float, now: float, this_host: str
) -> bool:
    known = liveness.life(process, lease.holder.host, this_host)
    return known is Life.ALIVE or (known is Life.UNKNOWN and now < ends)


def _attached(db: Connection, lease: str) -> list[ProcessIdentity]:
    rows = db.execute(
        "SELECT pid, start_time, boot_id, pid_namespace FROM devices "
        "WHERE lease = ? AND pid IS NOT NULL",
        (lease,),
    )
    return [as_process(row) for row in rows]


def as_process(row: tuple[Any, ...]) -> ProcessIdentity:
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


def _now() -> float:
    # Goes on while the machine sleeps, and is never set: unlike the time of day.
    return time.clock_gettime(time.CLOCK_BOOTTIME)
