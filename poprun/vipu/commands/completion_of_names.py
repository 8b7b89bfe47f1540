"""Complete names that an inventory knows, in a shell."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import click

from poprun.errors import PoprunError
from poprun.vipu.commands.session import Session

if TYPE_CHECKING:
    from poprun.vipu.inventory.interface import Inventory

Complete = Callable[[click.Context, click.Parameter, str], list[str]]
# A shell that waits for longer feels broken.
_TIMEOUT_S = 1.0


class _Named(Protocol):
    @property
    def name(self) -> str: ...


def names_of(kind: str) -> Complete:
    """Return what completes the names of partitions, agents and so on."""

    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[str]:
        session = ctx.find_object(Session)
        if session is None:
            return []
        session.given.setdefault("api_timeout", _TIMEOUT_S)
        try:
            with session.open() as inventory:
                names = _list(inventory, kind)
        except PoprunError:
            # There is nothing to offer; the error is reported when the line is run.
            return []
        return [name for name in names if name.startswith(incomplete)]

    return complete


def _list(inventory: "Inventory", kind: str) -> list[str]:
    listed: dict[str, Callable[[], Sequence[_Named]]] = {
        "agents": inventory.list_agents,
        "allocations": inventory.list_allocations,
        "clusters": inventory.list_clusters,
        "partitions": inventory.list_partitions,
        "users": inventory.list_users,
    }
    return [value.name for value in listed[kind]()]
