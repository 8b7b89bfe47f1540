"""Complete names that an inventory knows, in a shell."""

from collections.abc import Callable

import click

from poprun.errors import PoprunError
from poprun.vipu.commands.session import Session

Complete = Callable[[click.Context, click.Parameter, str], list[str]]
# A shell that waits for longer feels broken.
_TIMEOUT_S = 1.0


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
                values = getattr(inventory, f"list_{kind}")()
        except PoprunError:
            # There is nothing to offer; the error is reported when the line is run.
            return []
        return [value.name for value in values if value.name.startswith(incomplete)]

    return complete
