"""Commands that perform one operation of the inventory and report it, made of data.

Their options are made from the arguments of the operation.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from poprun.errors import PoprunError
from poprun.vipu import wire
from poprun.vipu.commands.command_line import Command
from poprun.vipu.commands.session import Session
from poprun.vipu.commands.views.machine_views import VIEWS
from poprun.vipu.commands.views.pod_picture import ClusterState
from poprun.vipu.errors import VipuRuleError
from poprun.vipu.inventory.interface import Inventory, operation
from poprun.vipu.model import Cluster
from poprun.vipu.rules.checks import read_hosts

Decorator = Callable[[Any], Any]
# By an argument of an operation: how the option is spelled, its help, and what click
# cannot be told by the type of the argument.
Table = Mapping[str, tuple[str, str] | tuple[str, str, dict[str, Any]]]
# How long to wait for names to complete: a shell that waits for longer feels broken.
_COMPLETION_TIMEOUT_S = 1.0
# Of commands that are not called as what they do.
_OPERATIONS = {
    "update agent": "set_agent_status",
    "update cluster": "set_cluster_hosts",
}


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


class _Spelling(click.Choice[Any]):
    """A member of an enumeration of V-IPU, in any spelling of it."""

    def __init__(self, kind: Any) -> None:
        super().__init__([str(member) for member in kind], case_sensitive=False)
        self._kind = kind

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        try:
            return self._kind.read(value)
        except VipuRuleError as error:
            self.fail(str(error), param, ctx)


def options_of(request: Any, table: Table) -> list[Decorator]:
    """Return the options that a table names, for the fields of a dataclass.

    A field that has no default makes an option that must be given.
    """
    options = []
    for field, (names, help_, *more) in table.items():
        attributes = _attributes_of(field, request.__annotations__[field])
        attributes["required"] = field in wire.required_fields(request)
        for changes in more:
            attributes |= changes
        options.append(click.option(*names.split(), field, help=help_, **attributes))
    return options


def _attributes_of(field: str, kind: Any) -> dict[str, Any]:
    kind = wire.optional_of(kind) or kind
    if wire.items_of(kind):
        callback = host_list if field == "hosts" else comma_separated
        return {"metavar": "LIST", "callback": callback}
    if kind is bool:
        return {"is_flag": True}
    if kind is int:
        return {"metavar": "N", "type": click.IntRange(min=1)}
    if field in ("allocation", "cluster"):
        return {"metavar": "NAME", "shell_complete": names_of(field)}
    return {} if kind is str else {"type": _Spelling(kind)}


def name_argument(noun: str) -> Decorator:
    """Return the argument that names one thing that exists."""
    return click.argument("name", shell_complete=names_of(noun))


def name_option(noun: str, help_: str) -> Decorator:
    """Return the option that names a cluster and the like: --cluster NAME."""
    complete = names_of(noun)
    return click.option(
        f"--{noun}", metavar="NAME", shell_complete=complete, help=help_
    )


def names_of(noun: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
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


def comma_separated(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[str, ...]:
    """Return the names that an option lists: "ag1,ag2".

    Raises:
        click.UsageError: It must list some, and lists none.
    """
    names = _cut(value)
    if param.required and not names:
        option = param.opts[0]
        raise click.UsageError(f"{option} is empty. List agents: {option} ag1,ag2")
    return names


def host_list(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[str, ...]:
    """Return the hosts that an option lists as poprun's --host does; it may be empty.

    Raises:
        VipuRuleError: They are no hosts.
    """
    return read_hosts(_cut(value))


def _cut(value: str | None) -> tuple[str, ...]:
    return tuple(name for name in re.split(r"[,\s]+", value or "") if name)
