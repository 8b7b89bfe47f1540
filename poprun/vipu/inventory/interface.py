"""The operations of an inventory: of the embedded one, and of a server's.

Each operation is one transaction: it happens as a whole or not at all, and raises a
subclass of VipuError with a sentence for the user. Leases of holders that are gone are
ended before an operation refuses something because of them, and before it lists.
`user` limits partitions to those that the user may see.
"""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, field, make_dataclass
from functools import cached_property
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from poprun.vipu.inventory import (
    acquisition,
    leases,
    machines,
    partitions,
    placement,
    users,
)
from poprun.vipu.inventory.transaction import Transaction
from poprun.vipu.model import Cluster

P = ParamSpec("P")
T = TypeVar("T")


class Operation(Generic[P, T]):
    """One operation: a function in a transaction, its name and rights.

    In an inventory it is a method, which binds its arguments and performs it, here or
    behind a server. Requests to a server and their documentation are made from the same
    operations.

    Args:
        body: Performs it in a transaction of a database.
        is_for_admins: Whether users may not perform it.
        needs_key: Whether a server with access keys requires one.
    """

    def __init__(
        self,
        body: Callable[Concatenate[Transaction, P], T],
        *,
        is_for_admins: bool = False,
        needs_key: bool = True,
    ) -> None:
        self.body = body
        self.result: Any = body.__annotations__["return"]
        # The docstring of its function.
        self.description = body.__doc__ or ""
        self.is_for_admins = is_for_admins
        self.needs_key = needs_key

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, inventory: "Inventory | None", owner: type) -> Callable[P, T]:
        if inventory is None:
            return cast(Callable[P, T], self)

        def perform(*args: P.args, **kwargs: P.kwargs) -> T:
            arguments = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in vars(self.arguments(*args, **kwargs)).items()
            }
            return cast(T, inventory._perform(self.result, self.name, **arguments))

        return perform

    @cached_property
    def arguments(self) -> Any:
        """A dataclass of its arguments."""
        _, *parameters = inspect.signature(self.body).parameters.values()
        fields = []
        for each in parameters:
            default = MISSING if each.default is each.empty else each.default
            fields.append((each.name, each.annotation, field(default=default)))
        kind = "".join(map(str.capitalize, self.name.split("_")))
        return make_dataclass(kind, fields, frozen=True)


class Inventory:
    """An inventory that is open."""

    # Where it is, for sentences: a path, or the address of a server.
    location: str

    create_cluster = Operation(machines.create_cluster, is_for_admins=True)
    set_cluster_hosts = Operation(machines.set_cluster_hosts, is_for_admins=True)
    list_clusters = Operation(machines.list_clusters)
    get_cluster = Operation(machines.get_cluster)
    list_free_blocks = Operation(machines.list_free_blocks)
    remove_cluster = Operation(machines.remove_cluster, is_for_admins=True)
    create_agent = Operation(machines.create_agent, is_for_admins=True)
    list_agents = Operation(machines.list_agents)
    get_agent = Operation(machines.get_agent)
    remove_agent = Operation(machines.remove_agent, is_for_admins=True)
    set_agent_status = Operation(partitions.set_agent_status, is_for_admins=True)
    create_allocation = Operation(machines.create_allocation, is_for_admins=True)
    list_allocations = Operation(machines.list_allocations)
    get_allocation = Operation(machines.get_allocation)
    remove_allocation = Operation(machines.remove_allocation, is_for_admins=True)

    create_user = Operation(users.create_user, is_for_admins=True)
    list_users = Operation(users.list_users, is_for_admins=True)
    get_user = Operation(users.get_user, is_for_admins=True)
    remove_user = Operation(users.remove_user, is_for_admins=True)
    check_access = Operation(users.check_access, needs_key=False)

    create_partition = Operation(placement.create_partition)
    list_partitions = Operation(partitions.list_partitions)
    get_partition = Operation(partitions.get_partition)
    reset_partition = Operation(placement.reset_partition)
    update_partition = Operation(placement.update_partition)
    remove_partition = Operation(placement.remove_partition)

    acquire = Operation(acquisition.acquire)
    try_acquire = Operation(acquisition.try_acquire)
    wait_in_queue = Operation(acquisition.wait_in_queue)
    list_waiting = Operation(acquisition.list_waiting)
    # Holders of a lease may use it without an access key.
    renew = Operation(leases.renew, needs_key=False)
    release = Operation(acquisition.release, needs_key=False)
    get_lease = Operation(leases.get_lease, needs_key=False)
    attach = Operation(leases.attach, needs_key=False)
    detach = Operation(leases.detach, needs_key=False)
    list_leases = Operation(leases.list_leases)
    list_reservations = Operation(leases.list_reservations)
    end_dead_leases = Operation(leases.end_dead_leases)

    def ensure_cluster(self, num_ipus: int, num_ilds: int = 1) -> Cluster | None:
        """Make a pod for a job, if none is large enough, and all are automatic.

        Returns the cluster that was made, None if none was needed, or if the user or
        an administrator has made clusters: then those count. An administrator makes
        all clusters of a server.
        """
        return None

    def close(self) -> None:
        """Free what the inventory has open."""
        raise NotImplementedError

    def _perform(self, kind: Any, operation: str, **arguments: Any) -> Any:
        """Perform an operation by its name, and return its result, of that kind."""
        raise NotImplementedError


# By name.
OPERATIONS: dict[str, Operation[..., Any]] = {
    name: value
    for name, value in vars(Inventory).items()
    if isinstance(value, Operation)
}
OF_ADMINS = tuple(name for name, each in OPERATIONS.items() if each.is_for_admins)
