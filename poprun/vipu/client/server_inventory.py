"""The inventory of a server, seen through the network."""

import json
from dataclasses import asdict
from typing import Any, TypeVar

from poprun.vipu.client.connection import Connections, Reply
from poprun.vipu.client.server_address import ServerAddress
from poprun.vipu.errors import BY_CODE, ServerReplyError, VipuError
from poprun.vipu.inventory.interface import OF_ADMINS, Inventory
from poprun.vipu.leases import Acquisition, Grant
from poprun.vipu.model import Partition
from poprun.vipu.wire import WireError, from_json

T = TypeVar("T")

_MOST_CHARACTERS = 2000


class ServerInventory(Inventory):
    """The inventory of a server.

    Threads may share it. Nothing is asked before a method is called.

    Args:
        address: The server, and the user of the requests.
        timeout_s: How long each reply may take.
        admin: Make requests as an administrator, and see the things of all users.
    """

    def __init__(
        self, address: ServerAddress, *, timeout_s: float, admin: bool = False
    ) -> None:
        self.location = str(address)
        self._connections = Connections(address, timeout_s)
        self._is_admin = admin

    def close(self) -> None:
        self._connections.close()

    def server_version(self) -> str:
        """Return the server's version of poprun."""
        reply = self._connections.ask("/openapi.json", method="GET")
        try:
            version: str = json.loads(reply.body)["info"]["version"]
        except (ValueError, RecursionError, LookupError, TypeError) as error:
            raise self._reply_error(reply, "it does not tell its version") from error
        return str(version)

    def _perform(self, kind: type[T], operation: str, **arguments: Any) -> T:
        is_for_admins = self._is_admin or operation in OF_ADMINS
        path = f"/{'admin' if is_for_admins else 'user'}/{operation}"
        body = json.dumps(arguments, default=asdict).encode()
        reply = self._connections.ask(path, body)
        try:
            value = json.loads(reply.body)
        except (ValueError, RecursionError) as error:
            raise self._reply_error(reply, "its reply is not JSON") from error
        if reply.status != 200:
            raise self._refusal(reply, value)
        try:
            result: T = from_json(kind, value)
            _check_partitions(result)
            if isinstance(result, Grant):
                _check_grant(result, arguments["request"])
        except WireError as error:
            raise self._reply_error(reply, f"it replied with {error}") from error
        return result

    def _refusal(self, reply: Reply, value: Any) -> VipuError:
        """Return the error that a server replied with."""
        if not isinstance(value, dict):
            return self._reply_error(reply, "its refusal is not an object")
        error = BY_CODE.get(str(value.get("code")))
        sentence = value.get("message")
        if error is None or not isinstance(sentence, str):
            return self._reply_error(reply, "its refusal has no known code")
        return error(
            "".join(c if c.isprintable() else " " for c in sentence[:_MOST_CHARACTERS])
        )

    def _reply_error(self, reply: Reply, problem: str) -> ServerReplyError:
        return self._connections.reply_error(f"{problem} (HTTP {reply.status})")


def _check_partitions(value: Any) -> None:
    """Check the partitions of a reply.

    Raises:
        WireError: There is no such partition.
    """
    for item in value if type(value) is tuple else (value,):
        partition = item.partition if isinstance(item, Grant) else item
        if not isinstance(partition, Partition):
            continue
        counts = (partition.num_gcds, partition.gcd_size, partition.num_replicas)
        sizes = [block.size for block in partition.blocks]
        if not sizes or min(*sizes, *counts) < 1:
            raise WireError(f"a partition {partition.name[:40]!r} without IPUs")


def _check_grant(grant: Grant, request: Acquisition) -> None:
    """Check that a grant matches its request.

    Raises:
        WireError: It was granted something else.
    """
    granted = (grant.partition.name, grant.lease.lease_s)
    if granted != (request.partition, request.lease_s):
        raise WireError("a grant of something other than the request")
    if request.lease not in ("", grant.lease.id):
        raise WireError("the lease of another job")
    sizes = [child.num_ipus for child in grant.children]
    if sizes != [request.ipus_per_child] * request.num_children:
        raise WireError("devices other than the requested ones")
    if not sum(sizes) <= grant.parent.num_ipus <= grant.partition.size:
        raise WireError("a parent device that does not have the devices")
