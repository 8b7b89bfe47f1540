"""Commands that perform one operation of the inventory and report it, made of data."""

from collections.abc import Callable
from typing import Any

import click

from poprun.errors import PoprunError
from poprun.vipu.commands.command_line import Noun
from poprun.vipu.commands.session import Session
from poprun.vipu.commands.views.machine_views import VIEWS

Decorator = Callable[[Any], Any]
Complete = Callable[[click.Context, click.Parameter, str], list[str]]
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


def names_of(noun: str) -> Complete:
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


def list_command(noun: str, help_: str, *options: Decorator) -> Noun:
    """Return the command that lists agents and the like."""
    view = VIEWS[noun]

    def run(session: Session, **arguments: Any) -> None:
        with session.open() as inventory:
            values = getattr(inventory, f"list_{noun}s")(**arguments)
        session.show_all(values, view.value, view.table)

    return make_command(f"{noun}s", help_, run, *options)


def get_command(noun: str, help_: str) -> Noun:
    """Return the command that shows one agent and the like."""
    view = VIEWS[noun]

    def run(session: Session, name: str) -> None:
        with session.open() as inventory:
            value = getattr(inventory, f"get_{noun}")(name)
        session.show(value, view.value, view.properties)

    return make_command(noun, help_, run, name_argument(noun))


def change_command(
    verb: str,
    noun: str,
    help_: str,
    *options: Decorator,
    perform: Callable[..., object] | None = None,
) -> Noun:
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

    def run_once(session: Session, /, name: str, **arguments: Any) -> None:
        run(session, (name,), **arguments)

    if verb == "create":
        return make_command(noun, help_, run_once, click.argument("name"), *options)
    names = click.argument(
        "names", nargs=-1, required=True, shell_complete=names_of(noun)
    )
    return make_command(noun, help_, run, names, *options)


def make_command(
    noun: str, help_: str, run: Callable[..., None], *options: Decorator
) -> Noun:
    """Return a command that calls a function with the session and what is given."""
    callback: Any = click.pass_obj(run)
    for option in reversed(options):
        callback = option(callback)
    return click.command(noun, cls=Noun, help=help_)(callback)
