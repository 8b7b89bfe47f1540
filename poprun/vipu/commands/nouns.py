"""Commands that perform one operation of the inventory and report it, made of data."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from poprun.errors import PoprunError
from poprun.vipu.commands.command_line import Command
from poprun.vipu.commands.session import Session
from poprun.vipu.commands.views.machine_views import VIEWS
from poprun.vipu.commands.views.pod_picture import ClusterState
from poprun.vipu.inventory.interface import Inventory
from poprun.vipu.model import Cluster

Decorator = Callable[[Any], Any]
# How long to wait for names to complete: a shell that waits for longer feels broken.
_COMPLETION_TIMEOUT_S = 1.0


def name_argument(noun: str) -> Decorator:
    """Return the argument that names one thing that exists."""
    return click.argument("name", shell_complete=names_of(noun))


def name_option(noun: str, help_: str) -> Decorator:
    """Return the option that names a cluster and the like: --cluster NAME."""
    complete = names_of(noun)
    return click.option(
        f"--{noun}", metavar="NAME", shell_complete=complete, help=help_
    )


def names_of(
    noun: str,
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return what completes the names of partitions, agents and so on."""

    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[str]:
        session = ctx.find_object(Session)
        if session is None:
            return []
        session.given.setdefault("api_timeout", _COMPLETION_TIMEOUT_S)
        try:
            with session.open() as inventory:
                values = getattr(inventory, f"list_{noun}s")()
        except PoprunError:
            # There is nothing to offer; the error is reported when the line is run.
            return []
        return [value.name for value in values if value.name.startswith(incomplete)]

    return complete


def list_command(noun: str, help_: str, *options: Decorator) -> Command:
    """Return the command that lists agents and the like."""

    def run(session: Session, **arguments: Any) -> None:
        with session.open() as inventory:
            values = getattr(inventory, f"list_{noun}s")(**arguments)
            states = read_states(inventory, values)
        session.show_all(VIEWS[noun], states)

    return make_command(f"{noun}s", help_, run, *options)


def get_command(noun: str, help_: str) -> Command:
    """Return the command that shows one agent and the like."""

    def run(session: Session, name: str) -> None:
        with session.open() as inventory:
            value = getattr(inventory, f"get_{noun}")(name)
            (state,) = read_states(inventory, [value])
        session.show(VIEWS[noun], state)

    return make_command(noun, help_, run, name_argument(noun))


def read_states(inventory: Inventory, values: Sequence[Any]) -> list[Any]:
    """Return values as they are shown: clusters with their agents and free IPUs."""
    return [
        ClusterState(
            value,
            inventory.list_agents(value.name),
            inventory.list_free_blocks(value.name),
        )
        if isinstance(value, Cluster)
        else value
        for value in values
    ]


def change_command(
    verb: str,
    noun: str,
    help_: str,
    *options: Decorator,
    perform: Callable[..., object] | None = None,
) -> Command:
    """Return the command that makes one thing, or changes several, and reports each.

    Args:
        verb: What it does to them.
        noun: What one of them is called.
        help_: The help.
        options: The options that it takes.
        perform: Gets session, inventory, a name and the options' values; None for the
            operation of the inventory that has this name.
    """

    def run(session: Session, /, names: tuple[str, ...], **arguments: Any) -> None:
        with session.open() as inventory:
            for name in names:
                if perform is None:
                    getattr(inventory, f"{verb}_{noun}")(name, **arguments)
                else:
                    perform(session, inventory, name, **arguments)
                session.report_success(verb, noun, name)

    if verb == "create":
        argument = click.argument("names", metavar="NAME", nargs=1, callback=_in_tuple)
    else:
        argument = click.argument(
            "names", nargs=-1, required=True, shell_complete=names_of(noun)
        )
    return make_command(noun, help_, run, argument, *options)


def _in_tuple(_: click.Context, __: click.Parameter, name: str) -> tuple[str]:
    return (name,)


def make_command(
    noun: str, help_: str, run: Callable[..., None], *options: Decorator
) -> Command:
    """Return a command that calls a function with the session and what is given."""
    callback: Any = click.pass_obj(run)
    for option in reversed(options):
        callback = option(callback)
    return click.command(noun, cls=Command, help=help_)(callback)
