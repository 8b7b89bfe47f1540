"""The rights of a server's users.

A user acts in their own name only. The ids of leases are shortened in what a user
sees, unless the request names the lease: with the whole id any user can use it.
"""

from dataclasses import replace
from functools import cache
from typing import Any

from poprun.vipu.errors import AccessError
from poprun.vipu.inventory.interface import Inventory
from poprun.vipu.leases import Acquisition, Grant, Lease, Reservation, WaitingJob
from poprun.vipu.model import (
    Agent,
    Allocation,
    Cluster,
    Partition,
    PartitionRequest,
    User,
)

# How many digits of a lease's id are left: enough to tell one lease from another.
_ID_DIGITS = 8


def limited(arguments: dict[str, Any], user: User) -> dict[str, Any]:
    """Return the arguments of a request, with the user as the one who acts.

    Raises:
        AccessError: The request names another user.
    """
    limits = dict(arguments)
    if "user" in arguments:
        _check_name(arguments["user"], user)
        limits["user"] = user.name
    match arguments.get("request"):
        case PartitionRequest() as request:
            limits["request"] = _with_owner(request, user)
        case Acquisition() as request:
            _check_name(request.holder.user, user)
            create = request.create and _with_owner(request.create, user)
            limits["request"] = replace(request, create=create)
    return limits


def visible(result: Any, user: User, inventory: Inventory) -> Any:
    """Return what a user may see of a result of an inventory.

    A user sees their own leases and waiting jobs, the reservations of partitions that
    they share, and, if limited to some allocations, only the machines of these. All
    else is left out of a list.

    Raises:
        AccessError: The result is a single value, and the user may not see it.
    """

    @cache
    def partitions() -> set[str]:
        seen = inventory.list_partitions(user.name) if user.allocations else ()
        return {partition.name for partition in seen}

    @cache
    def clusters() -> set[str]:
        allocations = inventory.list_allocations()
        return {item.cluster for item in allocations if user.may_use(item.name)}

    def may_see(item: Any) -> bool:
        match item:
            case Lease() | WaitingJob():
                return item.holder.user == user.name
            case Reservation():
                is_own = item.lease.holder.user == user.name
                return is_own or item.partition in partitions()
            case Allocation():
                return user.may_use(item.name)
            case Agent():
                return user.may_use(item.allocation)
            case Cluster():
                return not user.is_limited or item.name in clusters()
        return True

    if type(result) is tuple:
        return tuple(filter(may_see, result))
    if not may_see(result):
        raise AccessError(
            f"User {user.name} may not see {type(result).__name__.lower()} "
            f"{result.name}. Ask the administrator for its allocation."
        )
    return result


def without_leases(result: Any, known: str | None = None) -> Any:
    """Return a result with the ids of leases shortened, except for one."""
    match result:
        case Grant():
            # Most often its partition was made for it, and stays as it is.
            if result.partition.lease in (None, result.lease.id):
                return result
            partition = without_leases(result.partition)
            return replace(result, partition=partition)
        case Partition() if result.lease is not None:
            return replace(result, lease=_shortened(result.lease, known))
        case Reservation():
            return replace(result, lease=without_leases(result.lease, known))
        case Lease():
            return replace(result, id=_shortened(result.id, known))
    if type(result) is tuple:
        return tuple(without_leases(item, known) for item in result)
    return result


def _shortened(lease: str, known: str | None) -> str:
    return lease if lease == known else lease[:_ID_DIGITS]


def _check_name(named: str | None, user: User) -> None:
    if named not in (None, user.name):
        raise AccessError(
            f"The request is in the name of user {named[:64]!r}, but with the access "
            f"key of user {user.name}. Name the user of this key."
        )


def _with_owner(request: PartitionRequest, user: User) -> PartitionRequest:
    if request.owner:
        _check_name(request.owner, user)
    return replace(request, owner=user.name)
