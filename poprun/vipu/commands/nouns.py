"""Commands that perform one operation of the inventory and report it, made of data."""

from collections.abc import Callable
from typing import Any

import click

from poprun.vipu.commands.command_line import Noun
from poprun.vipu.commands.completion_of_names import names_of
from poprun.vipu.commands.session import Session
from poprun.vipu.commands.views.machine_views import VIEWS

Decorator = Callable[[Any], Any]


def name_argument(noun: str) -> Decorator:
    """Return the argument that names one thing that exists."""
    return click.argument("name", shell_complete=names_of(f"{noun}s"))


def name_option(noun: str, help_: str) -> Decorator:
    """Return the option that names a cluster and the like: --cluster NAME."""
    complete = names_of(f"{noun}s")
    return click.option(
        f"--{noun}", metavar="NAME", shell_complete=complete, help=help_
    )


def list_command(noun: str, help_: str, *options: Decorator) -> Noun:
    """Return the command that lists agents and the like."""
    view = VIEWS[noun]

    def run(session: Session, **arguments: Any) -> None:
        with session.open() as inventory:
            values = getattr(inventory, f"list_{noun}s")(**arguments)
        session.show_all(values, view.value, view.table)

    return _command(f"{noun}s", help_, run, *options)


def get_command(noun: str, help_: str) -> Noun:
    """Return the command that shows one agent and the like."""
    view = VIEWS[noun]

    def run(session: Session, name: str) -> None:
        with session.open() as inventory:
            value = getattr(inventory, f"get_{noun}")(name)
        session.show(value, view.value, view.properties)

    return _command(noun, help_, run, name_argument(noun))


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
        return _command(noun, help_, run_once, click.argument("name"), *options)
    complete = names_of(f"{noun}s")
    names = click.argument("names", nargs=-1, required=True, shell_complete=complete)
    return _command(noun, help_, run, names, *options)


def _command(
    noun: str, help_: str, run: Callable[..., None], *options: Decorator
) -> Noun:
    callback: Any = click.pass_obj(run)
    for option in reversed(options):
        callback = option(callback)
    return click.command(noun, cls=Noun, help=help_)(callback)
