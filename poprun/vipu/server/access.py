"""What a user of a server may do and see. Pure.

A user asks for nothing but in their own name, and sees the ids of no lease but of
those that they know: an id is the right to the lease.
"""

from typing import Any

from poprun.vipu.leases import Grant, Lease, Reservation
from poprun.vipu.model import Partition, User
from poprun.vipu.requests import WaitingJob
from poprun.vipu.vipu_errors import AccessError

# So much of the id of a lease is shown, to tell one from another.
_SHOWN = 8


def limited(arguments: dict[str, Any], user: User) -> dict[str, Any]:
    """Return the arguments of a request, made in the name of a user.

    Raises:
        AccessError: It names another user.
    """
    limits = dict(arguments)
    if "user" in arguments:
        _check_name(arguments["user"], user)
        limits["user"] = user.name
    if "request" in arguments:
        limits["request"] = _owned(arguments["request"], user)
    if "asked" in arguments:
        asked = arguments["asked"]
        _check_name(asked.holder.user, user)
        if asked.create is not None:
            asked = asked._replace(create=_owned(asked.create, user))
        limits["asked"] = asked
    return limits


def visible(result: Any, user: User) -> Any:
    """Return what a user may see of a list: what is held by themselves."""
    if not isinstance(result, tuple) or hasattr(result, "_fields"):
        return result
    return tuple(item for item in result if _holder(item) in (None, user.name))


def without_leases(result: Any, known: str | None = None) -> Any:
    """Return a result with the ids of leases shortened, except for one."""
    if isinstance(result, Grant):
        partition = without_leases(result.partition, result.lease.id)
        return result._replace(partition=partition)
    if isinstance(result, Partition):
        if result.lease is None or result.lease == known:
            return result
        return result._replace(lease=result.lease[:_SHOWN])
    if isinstance(result, Reservation):
        return result._replace(lease=without_leases(result.lease, known))
    if isinstance(result, Lease):
        return result if result.id == known else result._replace(id=result.id[:_SHOWN])
    if isinstance(result, tuple) and not hasattr(result, "_fields"):
        return tuple(without_leases(item, known) for item in result)
    return result


def _check_name(named: str | None, user: User) -> None:
    if named not in (None, user.name):
        raise AccessError(
            f"The request is in the name of user {named[:64]!r}, but with the access "
            f"key of user {user.name}. Name the user whom the key belongs to."
        )


def _owned(request: Any, user: User) -> Any:
    if request.owner:
        _check_name(request.owner, user)
    return request._replace(owner=user.name)


def _holder(item: Any) -> str | None:
    if isinstance(item, Lease | WaitingJob):
        return item.holder.user
    if isinstance(item, Reservation):
        return item.lease.holder.user
    return None
