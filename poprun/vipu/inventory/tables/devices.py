"""Devices in the database: parents and children that leases hold, and attachments."""

from poprun.vipu.errors import DeviceError, InUseError, MismatchError
from poprun.vipu.inventory.rows import Transaction, columns_of
from poprun.vipu.inventory.tables.leases import describe_holders, get_lease
from poprun.vipu.leases import (
    PARENT,
    Lease,
    Life,
    ProcessIdentity,
    Reservation,
    check_process,
)
from poprun.vipu.model import Partition, next_power_of_two
from poprun.vipu.requests import Acquisition
from poprun.vipu.rules import numbering
from poprun.vipu.rules.numbering import Device
from poprun.vipu.rules.partition_rules import describe
from poprun.words import counted


def _columns(table: str, kind: type) -> str:
    return ", ".join(f"{table}.{column}" for column in columns_of(kind))


_RESERVATIONS = (
    f"SELECT partition, d.id, first, num_ipus, {_columns('l', Lease)}, "
    f"nullif(child, {PARENT}), {_columns('d', ProcessIdentity)} "
    "FROM devices d JOIN leases l ON l.id = lease "
)

# Of a device that no process is attached to.
_NO_PROCESS = [None] * len(ProcessIdentity._fields)


def reserve(
    db: Transaction, partition: Partition, acquisition: Acquisition, lease: Lease
) -> tuple[Device, tuple[Device, ...]]:
    """Let a lease hold a parent device, and a child device for each instance.

    Raises:
        InUseError: Other leases hold the IPUs.
        MismatchError: The partition has too few, even when all are free.
    """
    num_ipus = acquisition.num_children * acquisition.ipus_per_child
    if (
        num_ipus > partition.size
        or min(acquisition.num_children, acquisition.ipus_per_child) < 1
    ):
        raise MismatchError(
            f"Partition {describe(partition)} cannot serve a job of "
            f"{counted(num_ipus, 'IPU')}. Let poprun change it with "
            "--update-partition=yes, or name another with --vipu-partition."
        )
    parent = _free_parent(db, partition, acquisition)
    children = numbering.children_of(
        partition.size, parent, acquisition.num_children, acquisition.ipus_per_child
    )
    for child, device in enumerate((parent, *children), start=PARENT):
        db.insert("devices", lease.id, child, partition.name, device, *_NO_PROCESS)
    return parent, children


def _free_parent(
    db: Transaction, partition: Partition, acquisition: Acquisition
) -> Device:
    query = f"devices WHERE partition = ? AND child = {PARENT}"
    parents = db.select(Device, query, partition.name)
    size = partition.size
    if partition.reconfigurable:
        num_ipus = acquisition.num_children * acquisition.ipus_per_child
        size = next_power_of_two(num_ipus)
    first = numbering.first_free(partition.size, size, parents)
    if first < 0:
        raise InUseError(
            f"Partition {describe(partition)} is in use: "
            f"{sum(device.num_ipus for device in parents)} of its "
            f"{counted(partition.size, 'IPU')} are held by "
            f"{describe_holders(db, partition.name)}. The job needs "
            f"{size} that are free and next to each other. Wait until they are, or "
            "name another partition with --vipu-partition."
        )
    return numbering.make_device(partition.size, first, size)


def check_unused(
    db: Transaction, partition: Partition, verb: str, lease: str | None
) -> None:
    """Check that no other lease holds devices of a partition.

    Raises:
        InUseError: One does.
    """
    holders = describe_holders(db, partition.name, but_for=lease)
    if holders:
        raise InUseError(
            f"Partition {describe(partition)} cannot be {verb}, because it is in "
            f"use by {holders}. Wait until it is free, or use another partition."
        )


def attach(db: Transaction, lease: str, child: int, process: ProcessIdentity) -> Device:
    """Attach a process to a device, in place of one that has ended."""
    check_process(process)
    _, device, holder_lease, _, other = _get_child(db, lease, child)
    if (
        other not in (None, process)
        and db.observer.life(other, holder_lease.holder.host) is not Life.DEAD
    ):
        raise DeviceError(
            f"Device {device.id} of instance {child} cannot be attached to by process "
            f"{process.pid}, because process {other.pid} of the same job is attached "
            "to it. Let one process of each instance attach, and the others work "
            "through it."
        )
    db.update("devices", process._asdict(), lease=lease, child=child)
    return device


def detach(db: Transaction, lease: str, child: int, process: ProcessIdentity) -> None:
    if _get_child(db, lease, child).process == process:
        nothing = dict.fromkeys(ProcessIdentity._fields)
        db.update("devices", nothing, lease=lease, child=child)


def list_reservations(
    db: Transaction, partition: str | None
) -> tuple[Reservation, ...]:
    query = (
        f"{_RESERVATIONS}WHERE ?1 IS NULL OR partition = ?1 "
        "ORDER BY l.since, l.id, child"
    )
    return db.read(Reservation, query, partition)


def _get_child(db: Transaction, lease: str, child: int) -> Reservation:
    """Return a device that a lease holds, and who is attached to it.

    Raises:
        LeaseEndedError: The lease has ended.
        DeviceError: It holds no such device.
    """
    get_lease(db, lease)
    query = f"{_RESERVATIONS}WHERE lease = ? AND child = ?"
    for reservation in db.read(Reservation, query, lease, child):
        return reservation
    query = "SELECT partition, count(*) - 1 FROM devices WHERE lease = ?"
    partition, number = db.execute(query, lease).fetchone()
    raise DeviceError(
        f"Partition {partition} has no device for instance {child}: the job holds "
        f"{counted(number, 'device')} of it, for instances from 0 on. Start the "
        "job with as many instances as it has."
    )
