"""Partitions and clusters with the use of their IPUs, read from an inventory."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from poprun.vipu.inventory.interface import Inventory
from poprun.vipu.leases import Lease, Reservation
from poprun.vipu.model import IPUS_PER_MACHINE, Agent, Block, Cluster, Partition
from poprun.vipu.rules.numbering import positions

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
