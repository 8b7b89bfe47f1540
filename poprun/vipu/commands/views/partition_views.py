"""Partitions as the commands show them: tables, and JSON values.

Times are shown in the time zone of this machine, and in JSON in UTC.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from poprun.vipu.commands.views import text_tables
from poprun.vipu.commands.views.text_tables import Columns, cells_of, json_value
from poprun.vipu.leases import Lease, Reservation
from poprun.vipu.model import IPUS_PER_MACHINE, Agent, Partition
from poprun.vipu.rules.numbering import machines, positions

# By partition: the leases that hold devices of it, the oldest first.
Holders = Mapping[str, Sequence[Lease]]
# By the number of the IPU-Machine in its cluster.
AgentNames = Mapping[int, str]

_PARTITIONS: Columns = {
    "Partition": "name",
    "Cluster": "cluster",
    "ILDs": "num_ilds",
    "GW Routing": "gateway_routing.name",
    "ILD Routing": "link_routing.name",
    "Size": "size",
    "GCDs": "num_gcds",
    "State": "state.name",
}
# The original's first column has room for the names that sites use.
_WIDTHS = (11, 8, 4, 10, 11, 4, 4, 6)
_OF_ADMIN: Columns = {"Allocation": "allocation", "Owner": "owner"}
# Of a lease.
HOLDERS: Columns = {
    "User": "holder.user",
    "Job": "holder.job",
    "Host": "holder.host",
    "PID": "holder.process.pid",
    "Since": lambda lease: local_time(lease.since),
}
# Of a device that a process is attached to.
ATTACHED: Columns = {
    "Instance": "child",
    "Device": "device.id",
    "IPUs": "device.num_ipus",
    "Job": "lease.holder.job",
    "Host": lambda reservation: reservation.host or reservation.lease.holder.host,
    "PID": "process.pid",
}
ATTACHED_JSON: Columns = {name.lower(): column for name, column in ATTACHED.items()}
# Of a lease or a job that waits, for JSON.
HOLDER_JSON: Columns = {
    **{name.lower(): column for name, column in HOLDERS.items()},
    "since": lambda lease: utc_time(lease.since),
}
_PARTITION: Columns = {
    "Owner": "owner",
    "Cluster": "cluster",
    "Allocation": "allocation",
    "Size": "size",
    "ILDs": "num_ilds",
    "GCDs": "num_gcds",
    "IPUs per GCD": "gcd_size",
    "Replicas": "num_replicas",
    "Reconfigurable": "reconfigurable",
    "ILD Routing": "link_routing.name",
    "GW Routing": "gateway_routing.name",
    "Sync Type": "sync_type",
}


def holders_of(reservations: Sequence[Reservation]) -> Holders:
    """Return which leases hold devices of each partition."""
    by_id: dict[str, dict[str, Lease]] = {}
    for each in reservations:
        by_id.setdefault(each.partition, {})[each.lease.id] = each.lease
    return {partition: tuple(leases.values()) for partition, leases in by_id.items()}


def by_partition(
    reservations: Sequence[Reservation],
) -> Mapping[str, Sequence[Reservation]]:
    """Return the reservations of each partition that has some."""
    groups: dict[str, list[Reservation]] = {}
    for each in reservations:
        groups.setdefault(each.partition, []).append(each)
    return groups


def attached_to(reservations: Sequence[Reservation]) -> list[Reservation]:
    """Return the devices of instances that processes are attached to."""
    return [
        each
        for each in reservations
        if each.child is not None and each.process is not None
    ]


def partition_table(
    partitions: Sequence[Partition],
    *,
    for_admin: bool = False,
    holders: Holders | None = None,
) -> str:
    """Return the table of `list partitions`.

    Args:
        partitions: What to list.
        for_admin: Whether allocation and owner come first. Scripts for SDK 2.5 and
            later read the name of the partition from the third column.
        holders: Who holds devices, for columns at the end, one line for each.
    """
    columns = {**(_OF_ADMIN if for_admin else {}), **_PARTITIONS}
    widths = (0,) * (len(columns) - len(_WIDTHS)) + _WIDTHS
    if holders is None:
        return text_tables.format_values(columns, partitions, widths=widths)
    rows: list[tuple[str, ...]] = []
    for partition in partitions:
        leases = holders.get(partition.name, ())
        rows += rows_of_holders(cells_of(columns, partition), leases)
    return text_tables.format_table((*columns, *HOLDERS), rows, widths=widths)


def rows_of_holders(
    cells: tuple[str, ...],
    leases: Sequence[Lease],
    unused: tuple[str, ...] = ("-",) * len(HOLDERS),
) -> list[tuple[str, ...]]:
    """Return the cells of a partition with those of its holders, in a row for each."""
    first, *others = [cells_of(HOLDERS, lease) for lease in leases] or [unused]
    return [(*cells, *first), *((("",) * len(cells) + other) for other in others)]


def names_by_machine(agents: Sequence[Agent]) -> AgentNames:
    """Return the names of the agents of one cluster."""
    return {agent.machine: agent.name for agent in agents if agent.machine is not None}


def partition_properties(
    partition: Partition, reservations: Sequence[Reservation], names: AgentNames
) -> str:
    """Return the tables of `get partition`.

    What it is, who holds devices of it, and which processes are attached to them.
    """
    used = [names.get(number, f"machine {number}") for number in machines(partition)]
    pairs = [
        ("Partition ID", partition.name),
        ("State", partition.state.name),
        *([("Reason", partition.reason)] if partition.reason else []),
        *text_tables.properties_of(_PARTITION, partition),
        ("Agents", " ".join(used)),
        ("Created", local_time(partition.created)),
        ("Removed with", "its job" if partition.lease else "vipu remove partition"),
    ]
    leases = holders_of(reservations).get(partition.name, ())
    if not leases:
        return text_tables.format_properties([*pairs, ("In use by", "-")])
    text = text_tables.format_properties(pairs)
    text += text_tables.format_values(HOLDERS, leases)
    if attached := attached_to(reservations):
        text += text_tables.format_values(ATTACHED, attached)
    return text


_PARTITION_JSON = {
    "size": "size",
    "num_ilds": "num_ilds",
    "num_gcds": "num_gcds",
    "ipus_per_gcd": "gcd_size",
    "num_replicas": "num_replicas",
    "reconfigurable": "reconfigurable",
    "routing": "link_routing.name",
    "gw_routing": "gateway_routing.name",
    "sync_type": lambda partition: f"ST_{partition.sync_type.name}",
    "cluster": "cluster",
    "allocation": "allocation",
}


def partition_value(
    partition: Partition, reservations: Sequence[Reservation], names: AgentNames
) -> dict[str, Any]:
    """Return a partition for JSON, in the form of the original's `--showjson`.

    Args:
        reservations: Those of the partition.
    """
    ipus = ipu_names(positions(partition), names)
    leases = holders_of(reservations).get(partition.name, ())
    attached = attached_to(reservations)
    return {
        "id": partition.name,
        "spec": {**json_value(_PARTITION_JSON, partition), "ipus": ipus},
        "owner": partition.owner,
        "state": partition.state.in_api,
        "reason": partition.reason,
        "created": utc_time(partition.created),
        "removed_with_job": partition.lease is not None,
        "holders": [json_value(HOLDER_JSON, lease) for lease in leases],
        "attached": [json_value(ATTACHED_JSON, each) for each in attached],
    }


def ipu_names(ipus: Sequence[int], names: AgentNames) -> list[str]:
    """Return IPUs of a cluster by agent and number in it: ag0:3."""
    return [
        f"{names.get(position // IPUS_PER_MACHINE, '?')}:{position % IPUS_PER_MACHINE}"
        for position in ipus
    ]


def local_time(seconds: float) -> str:
    """Write a time in the time zone of this machine."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def utc_time(seconds: float) -> str:
    """Write a time for JSON."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
