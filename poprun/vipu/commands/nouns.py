"""Commands made of their words: `list agents` lists what `list_agents` returns."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click

from poprun.vipu.commands import views
from poprun.vipu.commands.command_line import Command, complete
from poprun.vipu.commands.session import Session, Shown
from poprun.vipu.commands.uses import read_cluster

Run = Callable[..., Any]

# The operations of the inventory with other names than their commands.
_OPERATIONS = {
    "update agent": "set_agent_status",
    "update cluster": "set_cluster_hosts",
}


def command(
    words: str,
    help_: str,
    *options: click.Option,
    run: Run | None = None,
    for_admins: bool = False,
) -> Command:
    """Return the command of a verb and a noun.

    Args:
        words: The verb and the noun.
        help_: The help.
        options: Its options.
        run: Takes the session, the name if there is one, and the options' values;
            returns the result, or None to report success. By default it performs the
            operation of the inventory with this name.
        for_admins: Whether only `vipu-admin` has it.
    """
    verb, noun = words.split()
    how, default, *arguments = _VERBS[verb]
    run = partial(how, words, run or partial(default, words))
    return Command(
        noun,
        verb=verb,
        for_admins=for_admins,
        params=[*arguments, *options],
        callback=click.pass_obj(run),
        help=help_,
    )


def _show(words: str, run: Run, session: Session, **values: Any) -> None:
    session.show(*run(session, **values))


def _change(
    words: str,
    run: Run,
    session: Session,
    name: str = "",
    names: Sequence[str] = (),
    **values: Any,
) -> None:
    for each in names or [name]:
        shown: Shown | None = run(session, each, **values)
        if len(names) < 2:
            # The embedded inventory waits for the disk.
            session.close()
        session.show(*(shown or _success(words, each)))


def _success(words: str, name: str) -> Shown:
    value = {"command": words, "id": name, "success": True}
    return lambda: value, lambda: f"{words} ({name}): success.\n"


def _perform(words: str, session: Session, *name: str, **values: Any) -> None:
    operation = _OPERATIONS.get(words, words.replace(" ", "_"))
    getattr(session.inventory, operation)(*name, **values)


def _read(words: str, session: Session, **values: Any) -> Shown:
    verb, noun = words.removesuffix("s").split()
    found = getattr(session.inventory, words.replace(" ", "_"))(**values)
    results = found if verb == "list" else [found]
    if noun == "cluster":
        results = [read_cluster(session.inventory, each) for each in results]
    if verb == "list":
        return views.list_of(noun, results)
    return views.value_of(noun, *results)


_EXISTING = click.Argument(["name"], shell_complete=complete)
_SEVERAL = click.Argument(["names"], nargs=-1, required=True, shell_complete=complete)
# By verb: how the command runs, what it does by default, and its arguments.
_VERBS: dict[str, tuple[Any, ...]] = {
    "list": (_show, _read),
    "discover": (_show, _read),
    "get": (_show, _read, _EXISTING),
    "create": (_change, _perform, click.Argument(["name"])),
    "update": (_change, _perform, _SEVERAL),
    "reset": (_change, _perform, _SEVERAL),
    "remove": (_change, _perform, _SEVERAL),
}
