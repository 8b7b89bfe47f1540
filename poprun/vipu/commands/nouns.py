"""Commands that perform one operation of the inventory and report it, made of data."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from poprun.vipu.commands.command_line import Command
from poprun.vipu.commands.options import (
    Decorator,
    Table,
    name_argument,
    names_of,
    options_of,
)
from poprun.vipu.commands.session import Session
from poprun.vipu.commands.views.machine_views import VIEWS
from poprun.vipu.commands.views.pod_picture import ClusterState
from poprun.vipu.inventory.interface import Inventory, operation
from poprun.vipu.model import Cluster

# Of commands that are not called as what they do.
_OPERATIONS = {"update agent": "set_agent_status"}


def list_command(noun: str, help_: str, *options: Decorator) -> Command:
    """Return the command that lists agents and the like."""

    def run(session: Session, **arguments: Any) -> None:
        with session.open() as inventory:
            values = getattr(inventory, f"list_{noun}s")(**arguments)
            states = read_states(inventory, values)
        session.show_all(VIEWS[noun], states)

    return make_command(f"list {noun}s", help_, run, *options)


def get_command(noun: str, help_: str) -> Command:
    """Return the command that shows one agent and the like."""

    def run(session: Session, name: str) -> None:
        with session.open() as inventory:
            value = getattr(inventory, f"get_{noun}")(name)
            (state,) = read_states(inventory, [value])
        session.show(VIEWS[noun], state)

    return make_command(f"get {noun}", help_, run, name_argument(noun))


def read_states(inventory: Inventory, values: Sequence[Any]) -> list[Any]:
    """Return values as they are shown: clusters with their agents and free IPUs."""

    def read(value: Any) -> Any:
        if not isinstance(value, Cluster):
            return value
        agents = inventory.list_agents(value.name)
        return ClusterState(value, agents, inventory.list_free_blocks(value.name))

    return list(map(read, values))


def change_command(
    words: str,
    help_: str,
    table: Table | None = None,
    *,
    perform: Callable[..., object] | None = None,
) -> Command:
    """Return the command that makes one thing, or changes several, and reports each.

    Args:
        words: The verb, and the noun that one of them is called by.
        help_: The help.
        table: The options that it takes.
        perform: Gets session, inventory, a name and the options' values; None for the
            operation of the inventory that has this name.
    """
    verb, noun = words.split()
    action = _OPERATIONS.get(words, words.replace(" ", "_"))

    def run(session: Session, /, names: tuple[str, ...], **arguments: Any) -> None:
        with session.open() as inventory:
            for name in names:
                if perform is None:
                    getattr(inventory, action)(name, **arguments)
                else:
                    perform(session, inventory, name, **arguments)
                session.report_success(verb, noun, name)

    if verb == "create":
        argument = click.argument("names", metavar="NAME", nargs=1, callback=_in_tuple)
    else:
        argument = click.argument(
            "names", nargs=-1, required=True, shell_complete=names_of(noun)
        )
    options = options_of(operation(action).arguments, table or {})
    return make_command(words, help_, run, argument, *options)


def _in_tuple(_: click.Context, __: click.Parameter, name: str) -> tuple[str]:
    return (name,)


def make_command(
    words: str, help_: str, run: Callable[..., None], *options: Decorator
) -> Command:
    """Return a command that calls a function with the session and what is given."""
    verb, noun = words.split()
    callback: Any = click.pass_obj(run)
    for option in reversed(options):
        callback = option(callback)
    command = click.command(noun, cls=Command, help=help_)(callback)
    command.verb = verb
    # A noun may be singular or plural.
    command.aliases = (f"{noun}s", noun.removesuffix("s"))
    return command
