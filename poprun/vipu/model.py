"""The parts of a V-IPU, and requests for them: frozen values.

`rules.checks` checks new ones. In a request, None leaves a choice to the inventory.

A cluster is a row of IPU-Machines with 4 IPUs each. Its IPUs are numbered from 0, the
IPUs of one IPU-Link domain (ILD) next to each other; such a number is a position.
Within a partition the IPUs are numbered from 0 again; such a number is an index.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from poprun.vipu.errors import VipuRuleError

IPUS_PER_MACHINE = 4
# IPU-Links join the IPUs of one rack.
LARGEST_ILD = 64
MOST_ILDS = 1024


class Spelled(StrEnum):
    """An enumeration of V-IPU, written as the vipu command writes it."""

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the member that a text names, in V-IPU's or in the API's spelling.

        ringswnc, ring-swnc, RINGSWNC and RT_RINGSWNC are the same.

        Raises:
            VipuRuleError: There is no such member.
        """
        word = text.lower().replace("_", "-")
        word = re.sub(r"^(st|rt|irt|ps|lt|ct)-", "", word)
        for member in cls:
            if word.replace("-", "") == member.value.replace("-", ""):
                return member
        raise VipuRuleError(
            f"{text[:100]!r} is no {cls.__doc__}. There are {', '.join(cls)}."
        )


class SyncType(Spelled):
    """synchronisation type"""

    C2_COMPATIBLE = "c2-compatible"
    POD_NATIVE_DEFAULT = "pod-native-default"


class LinkRouting(Spelled):
    """routing over IPU-Links"""

    DEFAULT = "default"
    DNC = "dnc"
    SWNC = "swnc"
    RINGSWNC = "ringswnc"
    BTNC = "btnc"


class GatewayRouting(Spelled):
    """routing over GW-Links"""

    DEFAULT = "default"


class LinkTopology(Spelled):
    """topology of IPU-Links"""

    MESH = "mesh"
    TORUS = "torus"


class ClusterTopology(Spelled):
    """topology of GW-Links"""

    LINE = "line"
    LOOPED = "looped"


class AgentStatus(Spelled):
    """status of an agent"""

    UP = "up"  # partitions on it become active
    DOWN = "down"  # partitions on it fail
    UNKNOWN = "unknown"  # partitions on it stay pending


class PartitionState(Spelled):
    """state of a partition"""

    PENDING = "pending"
    ACTIVE = "active"
    ERROR = "error"

    @property
    def in_api(self) -> str:
        """The state as the API and poprun's log name it: PS_ACTIVE."""
        return f"PS_{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """IPU-Machines that IPU-Links and GW-Links join, in `num_ilds` equal domains."""

    name: str
    num_ilds: int = 1
    ild_size: int = LARGEST_ILD
    topology: LinkTopology = LinkTopology.TORUS
    gateway_topology: ClusterTopology = ClusterTopology.LOOPED
    # Made by the inventory itself, because a job needed one and there was none.
    automatic: bool = False
    # The host servers of its pods, each for as many IPUs as another; empty if they are
    # not known.
    hosts: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """How many IPUs it has."""
        return self.num_ilds * self.ild_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """An IPU-Machine; `machine` is its number in its cluster, None outside of one."""

    name: str
    host: str
    port: int = 8080
    status: AgentStatus = AgentStatus.UP
    cluster: str | None = None
    machine: int | None = None
    allocation: str | None = None

    @property
    def positions(self) -> range:
        """Where its IPUs are in the cluster."""
        if self.machine is None:
            return range(0)
        first = self.machine * IPUS_PER_MACHINE
        return range(first, first + IPUS_PER_MACHINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Agents of one cluster that partitions are made from; none spans two of them.

    Each agent of a cluster is in one allocation: in the one with the name of the
    cluster, unless another was made for it.
    """

    name: str
    cluster: str
    agents: tuple[str, ...]
    # The users who may use it; empty for every user.
    users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user of a server, who shows an access key."""

    name: str
    is_admin: bool = False
    # The allocations that were made for the user, alone or among others.
    allocations: tuple[str, ...] = ()
    # Whether the user may use no others.
    is_limited: bool = False

    def may_use(self, allocation: str | None) -> bool:
        return not self.is_limited or allocation in self.allocations


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Neighbouring IPUs of a cluster: `size` of them from position `first` on."""

    first: int
    size: int

    @property
    def positions(self) -> range:
        return range(self.first, self.first + self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """IPUs that can communicate, isolated from all others."""

    name: str
    cluster: str
    allocation: str
    owner: str
    num_gcds: int
    # IPUs of each GCD; what they leave over stays idle.
    gcd_size: int
    num_replicas: int
    reconfigurable: bool
    link_routing: LinkRouting
    gateway_routing: GatewayRouting
    sync_type: SyncType
    link_topology: LinkTopology
    # One for each ILD, all of one size, in the order of the partition's indices.
    blocks: tuple[Block, ...]
    # IPUs in each ILD of the cluster, whatever the partition has of them.
    cluster_ild_size: int
    state: PartitionState = PartitionState.PENDING
    # Why the state is ERROR or stays PENDING, in a sentence.
    reason: str = ""
    # Seconds since the epoch, for people.
    created: float = 0.0
    # The job that made it and takes it along when it ends; None to stay.
    lease: str | None = None
    # Goes up with every reset and update.
    generation: int = 0

    @property
    def size(self) -> int:
        """How many IPUs it has."""
        return sum(block.size for block in self.blocks)

    @property
    def num_ilds(self) -> int:
        return len(self.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRequest:
    """A cluster of existing agents, in their order, or of new ones: a preset."""

    name: str
    # Agents that belong to no cluster; empty for `num_machines` new ones.
    agents: tuple[str, ...] = ()
    num_machines: int = 0
    num_ilds: int = 1
    topology: LinkTopology = LinkTopology.TORUS
    gateway_topology: ClusterTopology = ClusterTopology.LOOPED
    automatic: bool = False
    # The host servers of its pods.
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRequest:
    """A partition to be created, or what an existing one must be."""

    name: str
    size: int
    num_gcds: int = 1
    # IPUs of each GCD; None for an equal share of the partition. The GCDs of a job
    # do not fill the partition if the IPUs of the job are no power of two.
    gcd_size: int | None = None
    # In all; None for one to each GCD.
    num_replicas: int | None = None
    # None for as many as the size needs.
    num_ilds: int | None = None
    reconfigurable: bool = False
    link_routing: LinkRouting | None = None
    gateway_routing: GatewayRouting | None = None
    sync_type: SyncType | None = None
    # Where from: an allocation or a whole cluster; neither for any that has room.
    allocation: str | None = None
    cluster: str | None = None
    owner: str = ""
    # The number of the cluster's place of this size, from 0; None for any free one.
    place_index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChange:
    """The new values of a partition; None leaves a value as it is."""

    size: int | None = None
    num_gcds: int | None = None
    gcd_size: int | None = None
    num_replicas: int | None = None
    num_ilds: int | None = None
    reconfigurable: bool | None = None
    link_routing: LinkRouting | None = None
    gateway_routing: GatewayRouting | None = None
    sync_type: SyncType | None = None


def is_power_of_two(number: int) -> bool:
    return number > 0 and number.bit_count() == 1


def next_power_of_two(number: int) -> int:
    """Return the smallest power of two that is not less than a positive number."""
    return 1 << (number - 1).bit_length()
