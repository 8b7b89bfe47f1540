"""Requests to an inventory: frozen values. None leaves a choice to it."""

from dataclasses import dataclass

from poprun.vipu.leases import Holder
from poprun.vipu.model import (
    ClusterTopology,
    GatewayRouting,
    LinkRouting,
    LinkTopology,
    SyncType,
)

DEFAULT_LEASE_S = 60.0


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


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJob:
    """A job waiting for IPUs."""

    holder: Holder
    num_ipus: int
    # The partition that it waits for; empty if one is to be made for it.
    partition: str
    # Seconds since the epoch, for people.
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Whether a waiting job is next, and a sentence: why it has to wait."""

    is_next: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquisition:
    """The IPUs that a job wants for itself, all or none.

    On a reconfigurable partition the first free device with enough IPUs becomes the
    parent device, on another the whole partition does.
    """

    holder: Holder
    partition: str
    # One child device for each instance, in rank order.
    num_children: int
    ipus_per_child: int
    # How to make the partition if there is none of this name.
    create: PartitionRequest | None = None
    # Whether a partition that this makes goes when the lease ends.
    remove: bool = True
    # For how long the lease lives without being renewed.
    lease_s: float = DEFAULT_LEASE_S
    # The id of the lease, 32 random hex digits, so that the job can release it even if
    # it never gets an answer; empty to let the inventory draw one.
    lease: str = ""
    # Whether instances run on other hosts than the holder: see `Lease`.
    spans_hosts: bool = False
