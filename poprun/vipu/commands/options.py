"""Options of the commands, made from the arguments of the inventory's operations."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import click

from poprun.errors import PoprunError
from poprun.vipu import wire
from poprun.vipu.commands.session import Session
from poprun.vipu.errors import VipuRuleError

Decorator = Callable[[Any], Any]
# By an argument of an operation: how the option is spelled, its help, and what click
# cannot be told by the type of the argument.
Table = Mapping[str, tuple[str, str] | tuple[str, str, dict[str, Any]]]
# How long to wait for names to complete: a shell that waits for longer feels broken.
_COMPLETION_TIMEOUT_S = 1.0


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
    """Return the options that a table names, for the fields of a named tuple.

    A field that has no default makes an option that must be given.
    """
    options = []
    for field, (names, help_, *more) in table.items():
        attributes = _attributes_of(field, request.__annotations__[field])
        attributes["required"] = field not in request._field_defaults
        for changes in more:
            attributes |= changes
        options.append(click.option(*names.split(), field, help=help_, **attributes))
    return options


def _attributes_of(field: str, kind: Any) -> dict[str, Any]:
    kind = wire.optional_of(kind) or kind
    if wire.items_of(kind):
        return {"metavar": "LIST", "callback": comma_separated}
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
    names = tuple(name for name in re.split(r"[,\s]+", value or "") if name)
    if param.required and not names:
        option = param.opts[0]
        raise click.UsageError(f"{option} is empty. List agents: {option} ag1,ag2")
    return names
