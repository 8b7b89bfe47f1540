"""The operations of an inventory: of the embedded one, and of a server's.

Client, server and OpenAPI are made from the methods of the three classes and their
annotations: a method has no body, and performs the operation of its name with its
arguments. Every method is one transaction: it happens as a whole or not at all, and
raises a subclass of VipuError with a sentence for the user. Leases of holders that are
gone are ended before a method refuses something because of them, and before it lists.
"""

# mypy: disable-error-code="empty-body"

from collections.abc import Sequence

from poprun.vipu.leases import Grant, Lease, ProcessIdentity, Reservation
from poprun.vipu.model import (
    Agent,
    AgentStatus,
    Allocation,
    Block,
    Cluster,
    Partition,
    User,
)
from poprun.vipu.operations import Operation, Operations, operation_of, performed
from poprun.vipu.requests import (
    Acquisition,
    ClusterRequest,
    PartitionChange,
    PartitionRequest,
    Turn,
    WaitingJob,
)
from poprun.vipu.rules.numbering import Device

# Holders of a lease may use it without an access key.
OF_HOLDERS = ("renew", "release", "get_lease", "attach", "detach")
WITHOUT_ACCESS_KEY = (*OF_HOLDERS, "check_access")


@performed
class Machines(Operations):
    """Clusters, agents, allocations and users: what an administrator makes."""

    def create_cluster(self, request: ClusterRequest) -> Cluster:
        """Make a cluster of agents, new ones if none are named.

        Raises:
            NameTakenError: There is a cluster or an allocation of that name.
            UnknownNameError: There is no such agent.
            InUseError: An agent belongs to another cluster.
            VipuRuleError: The agents cannot be divided into so many ILDs.
        """

    def set_cluster_hosts(self, name: str, hosts: Sequence[str]) -> Cluster:
        """Name the host servers of the pods of a cluster, in their order.

        A job of several instances that is too large for one of them runs on as many as
        it needs.

        Raises:
            VipuRuleError: They cannot share its IPUs equally, or one is named twice.
        """

    def list_clusters(self) -> tuple[Cluster, ...]: ...

    def get_cluster(self, name: str) -> Cluster: ...

    def list_free_blocks(self, cluster: str) -> tuple[Block, ...]:
        """Return the IPUs of a cluster that are in no partition, by position."""

    def remove_cluster(self, name: str) -> None:
        """Remove a cluster, and the agents that were made with it.

        Raises:
            InUseError: There are partitions in it.
        """

    def create_agent(self, name: str, host: str, port: int = 8080) -> Agent: ...

    def list_agents(self, cluster: str | None = None) -> tuple[Agent, ...]: ...

    def get_agent(self, name: str) -> Agent: ...

    def remove_agent(self, name: str) -> None:
        """Remove an agent that is in no cluster."""

    def set_agent_status(self, name: str, status: AgentStatus) -> Agent:
        """Let an emulated IPU-Machine fail, or come back.

        Partitions on it change their state when they are next created or reset, those
        that are pending at once.
        """

    def create_allocation(
        self, name: str, cluster: str, agents: Sequence[str], users: Sequence[str] = ()
    ) -> Allocation:
        """Set agents of a cluster apart.

        Raises:
            InUseError: Partitions use their IPUs.
        """

    def list_allocations(self) -> tuple[Allocation, ...]: ...

    def get_allocation(self, name: str) -> Allocation: ...

    def remove_allocation(self, name: str) -> None:
        """Give the agents of an allocation back to its cluster."""

    def create_user(
        self, name: str, allocations: Sequence[str] = (), *, is_admin: bool = False
    ) -> str:
        """Make a user, and return the access key, which is not kept."""

    def list_users(self) -> tuple[User, ...]: ...

    def get_user(self, name: str) -> User: ...

    def remove_user(self, name: str) -> None: ...

    def check_access(self, name: str, access_key: str) -> User:
        """Return the user whom an access key belongs to.

        Raises:
            AccessError: The user or the key is wrong; which of them is not said.
        """


# All others may be performed by users, too.
OF_ADMINS = (
    "list_users",
    "get_user",
    *(
        name
        for name in vars(Machines)
        if not name.startswith(("_", "list_", "get_", "check_"))
    ),
)


@performed
class Partitions(Operations):
    """Partitions. `user` limits them to the partitions of one user."""

    def create_partition(self, request: PartitionRequest) -> Partition:
        """Make a partition that stays until it is removed.

        It is not reset afterwards. Its state is ACTIVE if all agents are up.

        Raises:
            NameTakenError: There is one of this name.
            NoSpaceError: There are not enough free IPUs next to each other.
            VipuRuleError: No cluster could ever have it.
        """

    def list_partitions(self, user: str | None = None) -> tuple[Partition, ...]: ...

    def get_partition(self, name: str, user: str | None = None) -> Partition:
        """Return a partition, with its state as it is now.

        Raises:
            UnknownNameError: There is none; the sentence lists those there are.
        """

    def reset_partition(
        self, name: str, user: str | None = None, *, lease: str | None = None
    ) -> Partition:
        """Configure a partition anew; the job that asks names its own lease.

        Raises:
            InUseError: Another job holds IPUs of it.
        """

    def update_partition(
        self,
        name: str,
        change: PartitionChange,
        user: str | None = None,
        *,
        lease: str | None = None,
    ) -> Partition:
        """Change a partition, and move it if its size or its ILDs change.

        Raises:
            InUseError: Another job holds IPUs of it.
            NoSpaceError: The larger one has no room; the partition stays as it was.
        """

    def remove_partition(
        self,
        name: str,
        user: str | None = None,
        *,
        lease: str | None = None,
        force: bool = False,
    ) -> None:
        """Free the IPUs of a partition; `force` ends the leases that hold some.

        Raises:
            InUseError: Another job holds IPUs of it.
        """


@performed
class Devices(Operations):
    """Leases, and the devices that they hold."""

    def acquire(self, asked: Acquisition, user: str | None = None) -> Grant:
        """Give a job its IPUs: partition, parent device and children at once.

        Raises:
            InUseError: Others hold the IPUs; the sentence says who, since when.
            NoSpaceError: A partition had to be made, and there is no room for it.
            NotActiveError: The partition is not ACTIVE; one made for this is gone.
            MismatchError: There is such a partition, but not as it would be made.
            UnknownNameError: There is no such partition, and none is to be made.
        """

    def try_acquire(self, asked: Acquisition, user: str | None = None) -> Grant:
        """Return what `acquire` would give a job now, or raise as it would."""

    def wait_in_queue(self, asked: Acquisition, user: str | None = None) -> Turn:
        """Let a job wait for IPUs, or go on waiting: it must ask again all the time.

        It waits until it has acquired them or its lease is released.

        Raises:
            VipuRuleError: It would wait in vain.
        """

    def list_waiting(self) -> tuple[WaitingJob, ...]:
        """Return the jobs that wait for IPUs, the first one first."""

    def renew(self, lease: str) -> Lease:
        """Let a lease live for its time again, from now on.

        Raises:
            LeaseEndedError: It has ended.
        """

    def release(self, lease: str, wait_s: float = 0.0) -> None:
        """End a lease: its devices, its attachments, the partitions made for it.

        To end one that has ended already does nothing. `wait_s` is for how long
        instances on other hosts may still live: if the job has some, the lease ends
        after that.
        """

    def get_lease(self, lease: str) -> Lease: ...

    def list_leases(self) -> tuple[Lease, ...]: ...

    def attach(
        self,
        lease: str,
        child: int,
        process: ProcessIdentity,
        host: str | None = None,
    ) -> Device:
        """Attach a process to the child device of an instance, until it ends.

        `child` may be `leases.PARENT` for the guard of the job: see there. `host` names
        the host of the process, if the holder of the lease is on another.
        A process that is attached to it already stays so.

        Raises:
            LeaseEndedError: The lease has ended.
            DeviceError: There is no such child, or another living process has it.
        """

    def detach(self, lease: str, child: int, process: ProcessIdentity) -> None:
        """Detach a process from a device; the lease still holds it."""

    def list_reservations(
        self, partition: str | None = None
    ) -> tuple[Reservation, ...]: ...

    def end_dead_leases(self) -> tuple[Lease, ...]:
        """End the leases of holders that are gone, and return them."""


class Inventory(Machines, Partitions, Devices):
    """An inventory that is open."""

    # Where it is, for sentences: a path, or the address of a server.
    location: str

    def ensure_cluster(self, num_ipus: int, num_ilds: int = 1) -> Cluster | None:
        """Make a pod for a job, if none is large enough, and all are automatic.

        Returns the cluster that was made, None if none was needed, or if the user or
        an administrator has made clusters: then those count.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Free what the inventory has open."""
        raise NotImplementedError


def operation_names() -> tuple[str, ...]:
    """Return the names of all operations."""
    return tuple(
        name
        for area in (Machines, Partitions, Devices)
        for name in vars(area)
        if not name.startswith("_")
    )


def operation(name: str) -> Operation:
    """Return the operation of a name."""
    return operation_of(getattr(Inventory, name).__wrapped__)
