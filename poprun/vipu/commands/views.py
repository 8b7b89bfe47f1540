"""The fields that the commands show of each kind of value, and tables of them.

Partitions and clusters are shown with the use of their IPUs, read from an inventory.
JSON has the form of the original's `--showjson`. Times are shown in the time zone of
this machine, and in JSON in UTC.
"""

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from poprun.vipu.commands import tables
from poprun.vipu.commands.tables import Fields
from poprun.vipu.inventory.interface import Inventory
from poprun.vipu.leases import Lease, Reservation
from poprun.vipu.model import IPUS_PER_MACHINE, Agent, Block, Cluster, Partition
from poprun.vipu.rules.numbering import positions
from poprun.words import counted

# The names of a cluster's agents, by the number of the IPU-Machine.
AgentNames = Mapping[int | None, str]


class PartitionUse(NamedTuple):
    """A partition, and the use of its IPUs."""

    partition: Partition
    reservations: Sequence[Reservation] = ()
    names: AgentNames = MappingProxyType({})

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The leases on its devices, the oldest first."""
        return tuple({each.lease.id: each.lease for each in self.reservations}.values())

    @property
    def attached(self) -> list[Reservation]:
        """The devices of instances, if a process is attached."""
        return [r for r in self.reservations if r.child is not None and r.process]

    @property
    def agents(self) -> tuple[str, ...]:
        numbers = sorted({p // IPUS_PER_MACHINE for p in positions(self.partition)})
        return tuple(self.names.get(n, f"machine {n}") for n in numbers)


class ClusterUse(NamedTuple):
    """A cluster, and the use of its IPUs."""

    cluster: Cluster
    agents: tuple[Agent, ...]
    free: tuple[Block, ...]
    # The partitions that the user may see.
    partitions: Sequence[PartitionUse] = ()

    @property
    def num_free(self) -> int:
        return sum(block.size for block in self.free)

    @property
    def largest_free(self) -> int:
        """The largest number of free IPUs next to each other."""
        return max((block.size for block in self.free), default=0)

    @property
    def ipus(self) -> list[str]:
        return ipu_names(range(self.cluster.size), names_of(self.agents))

    def by_ild(self, ipus: Sequence[Any]) -> list[dict[str, Any]]:
        """Return values for JSON, one for each IPU, divided by ILD."""
        size = self.cluster.ild_size
        return [{"ipus": ipus[n : n + size]} for n in range(0, len(ipus), size)]

    def free_text(self, noun: str = "") -> str:
        """Return the number of free IPUs: `12, at most 8 next to each other`."""
        total, largest = self.num_free, self.largest_free
        more = f", at most {largest} next to each other" if largest < total else ""
        return f"{total}{noun}{more}"


def read_partitions(
    inventory: Inventory, partitions: Sequence[Partition]
) -> list[PartitionUse]:
    """Return partitions with the use of their IPUs."""
    by_name: dict[str, list[Reservation]] = {}
    for each in inventory.list_reservations():
        by_name.setdefault(each.partition, []).append(each)
    clusters = {partition.cluster for partition in partitions}
    names = {name: names_of(inventory.list_agents(name)) for name in clusters}
    return [
        PartitionUse(each, by_name.get(each.name, ()), names[each.cluster])
        for each in partitions
    ]


def read_cluster(
    inventory: Inventory, cluster: Cluster, partitions: Sequence[PartitionUse] = ()
) -> ClusterUse:
    """Return a cluster with its agents, its free IPUs and its partitions of some."""
    agents = inventory.list_agents(cluster.name)
    free = inventory.list_free_blocks(cluster.name)
    own = [use for use in partitions if use.partition.cluster == cluster.name]
    return ClusterUse(cluster, agents, free, own)


def names_of(agents: Sequence[Agent]) -> AgentNames:
    """Return the names of the agents of one cluster."""
    return {agent.machine: agent.name for agent in agents}


def ipu_names(ipus: Sequence[int], names: AgentNames) -> list[str]:
    """Return IPUs of a cluster by agent and number in it: ag0:3."""
    pairs = (divmod(position, IPUS_PER_MACHINE) for position in ipus)
    return [f"{names.get(machine, '?')}:{ipu}" for machine, ipu in pairs]


# The serial number of the first IPU-Machine of a cluster.
_FIRST_SERIAL = 8203921


def local_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def utc_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


# The fields of a lease, and of a waiting job.
HOLDER: Fields = (
    ("User", "user", "holder.user"),
    ("Job", "job", "holder.job"),
    ("Host", "host", "holder.host"),
    ("PID", "pid", "holder.process.pid"),
    ("Since", "", lambda lease: local_time(lease.since)),
    ("", "since", lambda lease: utc_time(lease.since)),
)
# The fields of a reservation with an attached process.
_ATTACHED: Fields = (
    ("Instance", "instance", "child"),
    ("Device", "device", "device.id"),
    ("IPUs", "ipus", "device.num_ipus"),
    ("Job", "job", "lease.holder.job"),
    ("Host", "host", lambda each: each.host or each.lease.holder.host),
    ("PID", "pid", "process.pid"),
)
# The fields of a PartitionUse.
_PARTITION: Fields = (
    ("Partition", "id", "partition.name"),
    ("Cluster", "spec.cluster", "partition.cluster"),
    ("ILDs", "spec.num_ilds", "partition.num_ilds"),
    ("GW Routing", "spec.gw_routing", "partition.gateway_routing.name"),
    ("ILD Routing", "spec.routing", "partition.link_routing.name"),
    ("Size", "spec.size", "partition.size"),
    ("GCDs", "spec.num_gcds", "partition.num_gcds"),
    ("State", "", "partition.state.name"),
)
_OWNER: Fields = (
    ("Allocation", "spec.allocation", "partition.allocation"),
    ("Owner", "owner", "partition.owner"),
)
_ALL: Fields = (
    *_PARTITION,
    *_OWNER,
    ("IPUs per GCD", "spec.ipus_per_gcd", "partition.gcd_size"),
    ("Replicas", "spec.num_replicas", "partition.num_replicas"),
    ("Reconfigurable", "spec.reconfigurable", "partition.reconfigurable"),
    ("Sync Type", "", "partition.sync_type"),
    ("Agents", "", "agents"),
    ("Created", "", lambda use: local_time(use.partition.created)),
    ("Removed with", "", lambda use: "its job" if use.partition.lease else _REMOVE),
    ("Reason", "reason", "partition.reason"),
    ("In use by", "", lambda use: use.leases and counted(len(use.leases), "job")),
    ("", "spec.sync_type", lambda use: f"ST_{use.partition.sync_type.name}"),
    ("", "spec.ipus", lambda use: ipu_names(positions(use.partition), use.names)),
    ("", "state", "partition.state.in_api"),
    ("", "created", lambda use: utc_time(use.partition.created)),
    ("", "removed_with_job", lambda use: use.partition.lease is not None),
    ("", "holders", lambda use: tables.list_json(HOLDER, use.leases)),
    ("", "attached", lambda use: tables.list_json(_ATTACHED, use.attached)),
)
_REMOVE = "vipu remove partition"
# The original's columns of partitions: the first has room for the names that sites use.
_WIDTHS = (11, 8, 4, 10, 11, 4, 4, 6)


_AGENT: Fields = (
    ("Agent ID", "id", "name"),
    ("Host", "spec.host", "host"),
    ("Port", "spec.port", "port"),
    ("Status", "", lambda agent: agent.status.capitalize()),
    ("Cluster", "cluster", "cluster"),
    ("Allocation", "allocation", "allocation"),
    ("", "status", "status"),
)
_ALLOCATION: Fields = (
    ("Allocation ID", "id", "name"),
    ("Agents", "spec.agents", "agents"),
    ("Cluster", "spec.cluster", "cluster"),
    ("Users", "", lambda allocation: allocation.users or "all"),
    ("", "spec.users", "users"),
)
# The fields of a ClusterUse.
_CLUSTER: Fields = (
    ("Cluster", "id", "cluster.name"),
    ("ILDs", "", "cluster.num_ilds"),
    ("Size", "", "cluster.size"),
    ("Topology", "spec.topology", "cluster.topology"),
    ("Cluster Topology", "spec.cluster_topology", "cluster.gateway_topology"),
    ("Free", "free", "num_free"),
    ("Free", "", ClusterUse.free_text),
    ("IPUs per ILD", "", "cluster.ild_size"),
    ("Made for a job", "automatic", "cluster.automatic"),
    ("Agents", "", lambda use: tuple(agent.name for agent in use.agents)),
    ("Hosts", "spec.hosts", "cluster.hosts"),
    ("", "spec.ipu_link_domains", lambda use: use.by_ild(use.ipus)),
)
# The fields of an agent that `discover agents` lists.
_DISCOVERED: Fields = (
    ("Host", "", "host"),
    ("Port", "", "port"),
    ("Network Interface", "", lambda _: "emulated"),
    ("Time Since Last Seen", "", lambda _: "0s"),
    ("Agent Auto-Add ID", "", "name"),
    *_AGENT,
)
_USER: Fields = (
    ("User", "id", "name"),
    ("Administrator", "is_admin", "is_admin"),
    ("Allocations", "allocations", "allocations"),
)
# By the noun: the fields, and how many of the first are columns of lists.
_FIELDS = {
    "agent": (_AGENT, 6),
    "allocation": (_ALLOCATION, 2),
    "cluster": (_CLUSTER, 6),
    "discovered agent": (_DISCOVERED, 5),
    "user": (_USER, 3),
}


# More fields of an agent with emulated IPUs.
_MACHINE: Fields = (
    ("Exporter", "", lambda agent: f"http://{agent.host}:2112/metrics"),
    ("Platform", "", lambda _: "ipum-p2"),
    ("Manufacturer", "", lambda _: "Graphcore"),
    ("Discovery Mode", "", lambda _: "DM_GCDA"),
    ("Virm version", "", lambda _: "master-1189-1493e2a"),
    ("Runtime version", "", lambda _: "1.0.48"),
    ("Board serial number", "", lambda agent: f"{_serial(agent)}-0007"),
    ("Part number", "", lambda _: "GC-ADA2-00-ES1 Rev. C"),
    ("GWSW Version", "", lambda _: "2.0.5"),
    ("IPUoF server version", "", lambda _: "v1.3.3"),
    ("Num of IPUs", "", lambda _: IPUS_PER_MACHINE),
)
# The fields of an IPU, by its number in the IPU-Machine.
_IPU: Fields = (
    ("IPU", "", str),
    ("PCI", "", lambda ipu: f"{ipu + 1:04d}:00:00.0"),
    ("Device", "", lambda _: "GC200"),
    ("Firmware", "", lambda _: "2.4.4"),
    ("Architecture", "", lambda _: "ipu2"),
    ("Num Tiles", "", lambda _: "1472"),
)


def ipu_attributes(agent: Agent, ipu: int) -> dict[str, str]:
    """Return the attributes of an emulated IPU, in the order of their names."""
    return {
        # Two IPUs share a board, and the links number them from the far end.
        "board ipu index": str(ipu % 2 ^ 1),
        "board serial number": f"0024.{ipu // 2 + 2:04d}.{_serial(agent)}",
        "board type": "M2000",
        "clock": "1330MHz",
        "driver version": "1.0.58",
        "firmware major version": "2",
        "firmware minor version": "4",
        "firmware patch version": "4",
        "firmware version": "2.4.4",
        # Memory of the host that IPUs exchange data with; emulated ones have none.
        "hexopt active size (bytes)": "0",
        "hexopt total size (bytes)": "0",
        "ipu architecture": "ipu2",
        "num tiles": "1472",
    }


def _serial(agent: Agent) -> int:
    return _FIRST_SERIAL + (agent.machine or 0)


def list_of(noun: str, values: Sequence[Any], *, as_json: bool) -> object:
    """Return several values for JSON, or as a table."""
    fields, num_listed = _FIELDS[noun]
    if as_json:
        return tables.list_json(fields, values)
    top_rule = noun == "allocation"
    return tables.format_list(fields[:num_listed], values, top_rule=top_rule)


def value_of(noun: str, value: Any, *, as_json: bool) -> object:
    """Return one value for JSON, or as a table."""
    fields, _ = _FIELDS[noun]
    if as_json:
        return tables.to_json(fields, value)
    return agent_text(value) if noun == "agent" else tables.format_value(fields, value)


def partition_json(use: PartitionUse) -> dict[str, Any]:
    return {"partition": tables.to_json(_ALL, use)}


def partition_list(
    uses: Sequence[PartitionUse], *, for_admin: bool, with_holders: bool
) -> str:
    """Return the table of `list partitions`.

    Args:
        uses: The partitions.
        for_admin: Begin with allocation and owner. Scripts for SDK 2.5 and later read
            the name of the partition from the third column.
        with_holders: End with columns for the holders of devices, a row for each.
    """
    fields = (*(_OWNER if for_admin else ()), *_PARTITION)
    widths = (0,) * (len(fields) - len(_WIDTHS)) + _WIDTHS
    rows = [tables.cells(fields, use) for use in uses]
    header = tables.header(fields)
    if with_holders:
        pairs = zip(rows, uses, strict=True)
        rows = [row for first, use in pairs for row in holder_rows(first, use.leases)]
        header += tables.header(HOLDER)
    return tables.format_table(rows, header, widths=widths)


def holder_rows(
    cells: list[str], leases: Sequence[Lease], unused: Sequence[str] = ("-",) * 5
) -> list[list[str]]:
    """Return a row for each holder of a partition, the first with its other cells."""
    rows = [tables.cells(HOLDER, lease) for lease in leases]
    first, *others = rows or [list(unused)]
    return [[*cells, *first], *([*[""] * len(cells), *other] for other in others)]


def partition_text(use: PartitionUse) -> str:
    """Return the tables of `get partition`: properties, holders, attached processes."""
    text = tables.format_value(_ALL, use)
    if use.leases:
        text += tables.format_list(HOLDER, use.leases)
    return text + (tables.format_list(_ATTACHED, use.attached) if use.attached else "")


def agent_text(agent: Agent) -> str:
    """Return the tables of `get agent`: the IPU-Machine, and its IPUs."""
    machine = tables.format_value([*_AGENT[:4], *_MACHINE], agent, widths=(20, 40))
    return machine + tables.format_list(_IPU, range(IPUS_PER_MACHINE))


def attribute_list(agents: Sequence[Agent]) -> str:
    """Return the table of `list ipu-attrs`; a repeated cell is left empty."""
    rows = []
    for agent in agents:
        for ipu in range(IPUS_PER_MACHINE):
            for number, pair in enumerate(ipu_attributes(agent, ipu).items()):
                name = agent.name if ipu == number == 0 else ""
                rows.append((name, "" if number else str(ipu), *pair))
    header = ("Agent", "IPU", "Attribute", "Value")
    return tables.format_table(rows, header, widths=(10, 3, 33, 18))
