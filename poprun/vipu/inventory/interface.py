"""The operations of an inventory: of the embedded one, and of a server's.

Client, server and OpenAPI are made from the methods of the three classes and their
annotations. Every method is one transaction: it happens as a whole or not at all, and
raises a subclass of VipuError with a sentence for the user. Leases whose holders are
gone are ended before a method refuses something because of them, and before it lists.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

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
from poprun.vipu.requests import (
    Acquisition,
    ClusterRequest,
    PartitionChange,
    PartitionRequest,
    Turn,
    WaitingJob,
)
from poprun.vipu.rules.numbering import Device

T = TypeVar("T")

# Who holds a lease may use it without an access key.
OF_HOLDERS = ("renew", "release", "get_lease", "attach", "detach")
# All others may be performed by users, too.
OF_ADMINS = (
    "create_cluster",
    "remove_cluster",
    "create_agent",
    "remove_agent",
    "set_agent_status",
    "create_allocation",
    "remove_allocation",
    "create_user",
    "list_users",
    "get_user",
    "remove_user",
)


class _Operations:
    def _perform(self, kind: type[T], operation: str, **arguments: Any) -> T:
        """Perform an operation by its name, and return its result, of that kind."""
        raise NotImplementedError(operation)


class Machines(_Operations):
    """Clusters, agents, allocations and users: what an administrator makes."""

    def create_cluster(self, request: ClusterRequest) -> Cluster:
        """Make a cluster of agents, new ones if none are named.

        Raises:
            NameTakenError: There is a cluster or an allocation of that name.
            UnknownNameError: There is no such agent.
            InUseError: An agent belongs to another cluster.
            VipuRuleError: The agents cannot be divided into so many ILDs.
        """
        return self._perform(Cluster, "create_cluster", request=request)

    def list_clusters(self) -> tuple[Cluster, ...]:
        return self._perform(tuple[Cluster, ...], "list_clusters")

    def get_cluster(self, name: str) -> Cluster:
        return self._perform(Cluster, "get_cluster", name=name)

    def list_free_blocks(self, cluster: str) -> tuple[Block, ...]:
        """Return the IPUs of a cluster that are in no partition, by position."""
        return self._perform(tuple[Block, ...], "list_free_blocks", cluster=cluster)

    def remove_cluster(self, name: str) -> None:
        """Remove a cluster, and the agents that were made with it.

        Raises:
            InUseError: There are partitions in it.
        """
        self._perform(type(None), "remove_cluster", name=name)

    def create_agent(self, name: str, host: str, port: int = 8080) -> Agent:
        return self._perform(Agent, "create_agent", name=name, host=host, port=port)

    def list_agents(self, cluster: str | None = None) -> tuple[Agent, ...]:
        return self._perform(tuple[Agent, ...], "list_agents", cluster=cluster)

    def get_agent(self, name: str) -> Agent:
        return self._perform(Agent, "get_agent", name=name)

    def remove_agent(self, name: str) -> None:
        """Remove an agent that is in no cluster."""
        self._perform(type(None), "remove_agent", name=name)

    def set_agent_status(self, name: str, status: AgentStatus) -> Agent:
        """Let an emulated IPU-Machine fail, or come back.

        Partitions on it change their state when they are next created, reset or
        looked at while they are pending.
        """
        return self._perform(Agent, "set_agent_status", name=name, status=status)

    def create_allocation(
        self,
        name: str,
        cluster: str,
        agents: Sequence[str],
        users: Sequence[str] = (),
    ) -> Allocation:
        """Set agents of a cluster apart.

        Raises:
            InUseError: Partitions use their IPUs.
        """
        return self._perform(
            Allocation,
            "create_allocation",
            name=name,
            cluster=cluster,
            agents=tuple(agents),
            users=tuple(users),
        )

    def list_allocations(self) -> tuple[Allocation, ...]:
        return self._perform(tuple[Allocation, ...], "list_allocations")

    def get_allocation(self, name: str) -> Allocation:
        return self._perform(Allocation, "get_allocation", name=name)

    def remove_allocation(self, name: str) -> None:
        """Give the agents of an allocation back to its cluster."""
        self._perform(type(None), "remove_allocation", name=name)

    def create_user(
        self, name: str, allocations: Sequence[str] = (), *, is_admin: bool = False
    ) -> str:
        """Make a user, and return the access key, which is not kept."""
        return self._perform(
            str,
            "create_user",
            name=name,
            allocations=tuple(allocations),
            is_admin=is_admin,
        )

    def list_users(self) -> tuple[User, ...]:
        return self._perform(tuple[User, ...], "list_users")

    def get_user(self, name: str) -> User:
        return self._perform(User, "get_user", name=name)

    def remove_user(self, name: str) -> None:
        self._perform(type(None), "remove_user", name=name)

    def check_access(self, name: str, access_key: str) -> User:
        """Return the user whom an access key belongs to.

        Raises:
            AccessError: The user or the key is wrong; which of them is not said.
        """
        return self._perform(User, "check_access", name=name, access_key=access_key)


class Partitions(_Operations):
    """Partitions. `user` limits what is seen to the partitions of one user."""

    def create_partition(self, request: PartitionRequest) -> Partition:
        """Make a partition that stays until it is removed.

        It is not reset afterwards. Its state is ACTIVE if all agents are up.

        Raises:
            NameTakenError: There is one of this name.
            NoSpaceError: There are not enough free IPUs next to each other.
            VipuRuleError: No cluster could ever have it.
        """
        return self._perform(Partition, "create_partition", request=request)

    def list_partitions(self, user: str | None = None) -> tuple[Partition, ...]:
        return self._perform(tuple[Partition, ...], "list_partitions", user=user)

    def get_partition(self, name: str, user: str | None = None) -> Partition:
        """Return a partition, with its state as it is now.

        Raises:
            UnknownNameError: There is none; the sentence lists those there are.
        """
        return self._perform(Partition, "get_partition", name=name, user=user)

    def reset_partition(
        self, name: str, user: str | None = None, *, lease: str | None = None
    ) -> Partition:
        """Configure a partition anew; `lease` is that of the job that asks.

        Raises:
            InUseError: Another job holds IPUs of it.
        """
        return self._perform(
            Partition, "reset_partition", name=name, user=user, lease=lease
        )

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
        return self._perform(
            Partition,
            "update_partition",
            name=name,
            change=change,
            user=user,
            lease=lease,
        )

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
        self._perform(
            type(None),
            "remove_partition",
            name=name,
            user=user,
            lease=lease,
            force=force,
        )


class Devices(_Operations):
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
        return self._perform(Grant, "acquire", asked=asked, user=user)

    def wait_in_queue(self, asked: Acquisition, user: str | None = None) -> Turn:
        """Let a job wait for IPUs, or go on waiting: it must ask again all the time.

        It waits until it has acquired them or its lease is released.

        Raises:
            VipuRuleError: It would wait in vain.
        """
        return self._perform(Turn, "wait_in_queue", asked=asked, user=user)

    def list_waiting(self) -> tuple[WaitingJob, ...]:
        """Return the jobs that wait for IPUs, the first one first."""
        return self._perform(tuple[WaitingJob, ...], "list_waiting")

    def renew(self, lease: str) -> Lease:
        """Let a lease live for its time again, from now on.

        Raises:
            LeaseEndedError: It has ended.
        """
        return self._perform(Lease, "renew", lease=lease)

    def release(self, lease: str) -> None:
        """End a lease: its devices, its attachments, the partitions made for it.

        To end one that has ended already does nothing.
        """
        self._perform(type(None), "release", lease=lease)

    def get_lease(self, lease: str) -> Lease:
        return self._perform(Lease, "get_lease", lease=lease)

    def list_leases(self) -> tuple[Lease, ...]:
        return self._perform(tuple[Lease, ...], "list_leases")

    def attach(self, lease: str, child: int, process: ProcessIdentity) -> Device:
        """Attach a process to the child device of an instance, until it ends.

        `child` may be `leases.PARENT` for the guard of the job: see there.
        A process that is attached to it already stays so.

        Raises:
            LeaseEndedError: The lease has ended.
            DeviceError: There is no such child, or another living process has it.
        """
        return self._perform(
            Device, "attach", lease=lease, child=child, process=process
        )

    def detach(self, lease: str, child: int, process: ProcessIdentity) -> None:
        """Detach a process from a device; the lease still holds it."""
        self._perform(type(None), "detach", lease=lease, child=child, process=process)

    def list_reservations(
        self, partition: str | None = None
    ) -> tuple[Reservation, ...]:
        return self._perform(
            tuple[Reservation, ...], "list_reservations", partition=partition
        )

    def end_dead_leases(self) -> tuple[Lease, ...]:
        """End the leases whose holders are gone, and return them."""
        return self._perform(tuple[Lease, ...], "end_dead_leases")


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
