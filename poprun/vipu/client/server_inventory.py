"""The inventory of a server, seen through the network."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from poprun.vipu.client.connection import Connections, Reply, reply_error
from poprun.vipu.client.reply_checks import check_grant, check_reply
from poprun.vipu.client.server_address import ServerAddress
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
from poprun.vipu.vipu_errors import BY_CODE, ServerReplyError, VipuError
from poprun.vipu.wire import WireError, from_json, to_json

_MOST_CHARACTERS = 2000


class _Asking:
    """One end point of a server: the users' or the administrators'."""

    def __init__(
        self, address: ServerAddress, *, timeout_s: float, admin: bool = False
    ) -> None:
        self.location = str(address)
        self._address = address
        self._prefix = "/admin/" if admin else "/user/"
        self._connections = Connections(address, timeout_s)

    def close(self) -> None:
        self._connections.close()

    def server_version(self) -> str:
        """Return the version of poprun that the server is of."""
        reply = self._connections.ask("/openapi.json", method="GET")
        try:
            version: str = json.loads(reply.body)["info"]["version"]
        except (ValueError, RecursionError, LookupError, TypeError) as error:
            raise self._nonsense(reply, "it does not tell its version") from error
        return str(version)

    def _ask(self, kind: Any, operation: str, **arguments: Any) -> Any:
        return self._send(kind, self._prefix + operation, arguments)

    def _ask_as_admin(self, kind: Any, operation: str, **arguments: Any) -> Any:
        return self._send(kind, f"/admin/{operation}", arguments)

    def _send(
        self,
        kind: Any,
        path: str,
        arguments: dict[str, Any],
        check: Callable[[Any], None] = check_reply,
    ) -> Any:
        try:
            body = json.dumps(
                {name: to_json(value) for name, value in arguments.items()}
            ).encode()
        except (TypeError, ValueError) as error:
            raise TypeError(f"{path} cannot be asked with {arguments}") from error
        reply = self._connections.ask(path, body)
        try:
            value = json.loads(reply.body)
        except (ValueError, RecursionError) as error:
            raise self._nonsense(reply, "its reply is no JSON") from error
        if reply.status != 200:
            raise self._refusal(reply, value)
        try:
            found = from_json(kind, value)
            check(found)
        except WireError as error:
            raise self._nonsense(reply, f"it replied with {error}") from error
        return found

    def _refusal(self, reply: Reply, value: Any) -> VipuError:
        """Return the error that a server replied with."""
        if not isinstance(value, dict):
            return self._nonsense(reply, "its refusal is no object")
        error = BY_CODE.get(str(value.get("code")))
        sentence = value.get("message")
        if error is None or not isinstance(sentence, str):
            return self._nonsense(reply, "its refusal has no known code")
        shown = sentence[:_MOST_CHARACTERS]
        return error("".join(c if c.isprintable() else " " for c in shown))

    def _nonsense(self, reply: Reply, what: str) -> ServerReplyError:
        return reply_error(self._address, f"{what} (HTTP {reply.status})")


class _Machines(_Asking):
    def create_cluster(self, request: ClusterRequest) -> Cluster:
        found: Cluster = self._ask_as_admin(Cluster, "create_cluster", request=request)
        return found

    def list_clusters(self) -> tuple[Cluster, ...]:
        found: tuple[Cluster, ...] = self._ask(tuple[Cluster, ...], "list_clusters")
        return found

    def get_cluster(self, name: str) -> Cluster:
        found: Cluster = self._ask(Cluster, "get_cluster", name=name)
        return found

    def list_free_blocks(self, cluster: str) -> tuple[Block, ...]:
        found: tuple[Block, ...] = self._ask(
            tuple[Block, ...], "list_free_blocks", cluster=cluster
        )
        return found

    def remove_cluster(self, name: str) -> None:
        self._ask_as_admin(None, "remove_cluster", name=name)

    def create_agent(self, name: str, host: str, port: int = 8080) -> Agent:
        found: Agent = self._ask_as_admin(
            Agent, "create_agent", name=name, host=host, port=port
        )
        return found

    def list_agents(self, cluster: str | None = None) -> tuple[Agent, ...]:
        found: tuple[Agent, ...] = self._ask(
            tuple[Agent, ...], "list_agents", cluster=cluster
        )
        return found

    def get_agent(self, name: str) -> Agent:
        found: Agent = self._ask(Agent, "get_agent", name=name)
        return found

    def remove_agent(self, name: str) -> None:
        self._ask_as_admin(None, "remove_agent", name=name)

    def set_agent_status(self, name: str, status: AgentStatus) -> Agent:
        found: Agent = self._ask_as_admin(
            Agent, "set_agent_status", name=name, status=status
        )
        return found

    def create_allocation(
        self,
        name: str,
        cluster: str,
        agents: Sequence[str],
        users: Sequence[str] = (),
    ) -> Allocation:
        found: Allocation = self._ask_as_admin(
            Allocation,
            "create_allocation",
            name=name,
            cluster=cluster,
            agents=tuple(agents),
            users=tuple(users),
        )
        return found

    def list_allocations(self) -> tuple[Allocation, ...]:
        found: tuple[Allocation, ...] = self._ask(
            tuple[Allocation, ...], "list_allocations"
        )
        return found

    def get_allocation(self, name: str) -> Allocation:
        found: Allocation = self._ask(Allocation, "get_allocation", name=name)
        return found

    def remove_allocation(self, name: str) -> None:
        self._ask_as_admin(None, "remove_allocation", name=name)

    def create_user(
        self, name: str, allocations: Sequence[str] = (), *, is_admin: bool = False
    ) -> str:
        access_key: str = self._ask_as_admin(
            str,
            "create_user",
            name=name,
            allocations=tuple(allocations),
            is_admin=is_admin,
        )
        return access_key

    def list_users(self) -> tuple[User, ...]:
        found: tuple[User, ...] = self._ask_as_admin(tuple[User, ...], "list_users")
        return found

    def get_user(self, name: str) -> User:
        found: User = self._ask_as_admin(User, "get_user", name=name)
        return found

    def remove_user(self, name: str) -> None:
        self._ask_as_admin(None, "remove_user", name=name)

    def check_access(self, name: str, access_key: str) -> User:
        found: User = self._ask(User, "check_access", name=name, access_key=access_key)
        return found


class _Partitions(_Asking):
    def create_partition(self, request: PartitionRequest) -> Partition:
        found: Partition = self._ask(Partition, "create_partition", request=request)
        return found

    def list_partitions(self, user: str | None = None) -> tuple[Partition, ...]:
        found: tuple[Partition, ...] = self._ask(
            tuple[Partition, ...], "list_partitions", user=user
        )
        return found

    def get_partition(self, name: str, user: str | None = None) -> Partition:
        found: Partition = self._ask(Partition, "get_partition", name=name, user=user)
        return found

    def reset_partition(
        self, name: str, user: str | None = None, *, lease: str | None = None
    ) -> Partition:
        found: Partition = self._ask(
            Partition, "reset_partition", name=name, user=user, lease=lease
        )
        return found

    def update_partition(
        self,
        name: str,
        change: PartitionChange,
        user: str | None = None,
        *,
        lease: str | None = None,
    ) -> Partition:
        found: Partition = self._ask(
            Partition,
            "update_partition",
            name=name,
            change=change,
            user=user,
            lease=lease,
        )
        return found

    def remove_partition(
        self,
        name: str,
        user: str | None = None,
        *,
        lease: str | None = None,
        force: bool = False,
    ) -> None:
        self._ask(
            None, "remove_partition", name=name, user=user, lease=lease, force=force
        )


class _Devices(_Asking):
    def acquire(self, asked: Acquisition, user: str | None = None) -> Grant:
        def check(grant: Grant) -> None:
            check_reply(grant)
            check_grant(grant, asked)

        path = self._prefix + "acquire"
        found: Grant = self._send(Grant, path, {"asked": asked, "user": user}, check)
        return found

    def wait_in_queue(self, asked: Acquisition, user: str | None = None) -> Turn:
        found: Turn = self._ask(Turn, "wait_in_queue", asked=asked, user=user)
        return found

    def list_waiting(self) -> tuple[WaitingJob, ...]:
        found: tuple[WaitingJob, ...] = self._ask(
            tuple[WaitingJob, ...], "list_waiting"
        )
        return found

    def renew(self, lease: str) -> Lease:
        found: Lease = self._ask(Lease, "renew", lease=lease)
        return found

    def release(self, lease: str) -> None:
        self._ask(None, "release", lease=lease)

    def get_lease(self, lease: str) -> Lease:
        found: Lease = self._ask(Lease, "get_lease", lease=lease)
        return found

    def list_leases(self) -> tuple[Lease, ...]:
        found: tuple[Lease, ...] = self._ask(tuple[Lease, ...], "list_leases")
        return found

    def attach(self, lease: str, child: int, process: ProcessIdentity) -> Device:
        found: Device = self._ask(
            Device, "attach", lease=lease, child=child, process=process
        )
        return found

    def detach(self, lease: str, child: int, process: ProcessIdentity) -> None:
        self._ask(None, "detach", lease=lease, child=child, process=process)

    def list_reservations(
        self, partition: str | None = None
    ) -> tuple[Reservation, ...]:
        found: tuple[Reservation, ...] = self._ask(
            tuple[Reservation, ...], "list_reservations", partition=partition
        )
        return found

    def end_dead_leases(self) -> tuple[Lease, ...]:
        found: tuple[Lease, ...] = self._ask(tuple[Lease, ...], "end_dead_leases")
        return found


class ServerInventory(_Machines, _Partitions, _Devices):
    """The inventory of a server. `inventory.interface` documents the methods.

    Threads may share it. Nothing is asked before a method is called.

    Args:
        address: Where the server is, and who asks.
        timeout_s: How long each reply may take.
        admin: Ask as an administrator, who sees what belongs to all users.
    """

    def ensure_cluster(self, num_ipus: int, num_ilds: int = 1) -> Cluster | None:
        # An administrator makes the clusters of a server.
        return None
