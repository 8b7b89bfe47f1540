"""`vipu` and `vipu-admin`: their verbs."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import click

from poprun import __version__
from poprun.errors import INVALID, REQUEST_FAILED, PoprunError
from poprun.texts.click_program import carry_out
from poprun.texts.stdout import write
from poprun.vipu.commands import machine_commands, partition_commands
from poprun.vipu.commands.command_line import Group, option
from poprun.vipu.commands.session import Session
from poprun.vipu.commands.show_command import show
from poprun.vipu.errors import InventoryBusyError
from poprun.vipu.inventory.location import find_inventory
from poprun.words import alternatives

_HELP = {
    "vipu": "Create, show and remove partitions of emulated IPUs.",
    "vipu-admin": "Administer emulated IPUs: machines, users and all partitions.",
}
_COMMANDS = (*partition_commands.COMMANDS, *machine_commands.COMMANDS)


def make_program(name: str) -> Group:
    """Return the command for users, `vipu`, or for administrators, `vipu-admin`."""
    verbs: list[click.Command] = []
    for verb in dict.fromkeys(each.verb for each in _COMMANDS):
        nouns = [each for each in _COMMANDS if each.verb == verb]
        own = [each for each in nouns if name == "vipu-admin" or not each.for_admins]
        names = alternatives([str(each.name) for each in own or nouns])
        word = {"get": "Show a", "list": "List", "discover": "Find"}.get(
            verb, f"{verb.capitalize()} a"
        )
        group = Group(
            verb,
            commands=nouns,
            help=f"{word} {names}.",
            for_admins=not own,
            subcommand_metavar="WHAT [ARGS]...",
        )
        verbs.append(group)
    version_help = "Show the version and the address of the server."
    return Group(
        name,
        commands=[*verbs, show],
        help=_HELP[name],
        subcommand_metavar="COMMAND [ARGS]...",
        invoke_without_command=True,
        callback=_run_program,
        params=[
            option("--version", bool, "Show the version."),
            option("--server-version", bool, version_help),
        ],
    )


@click.pass_context
def _run_program(ctx: click.Context, version: bool, server_version: bool) -> None:
    """Do what the options of the program itself ask for."""
    ctx.call_on_close(ctx.obj.close)
    if ctx.invoked_subcommand is not None:
        if version or server_version:
            raise click.UsageError(
                "--version and --server-version cannot be combined with a command."
            )
    elif version:
        write(f"{ctx.info_name} {__version__}\n")
    elif server_version:
        _show_server_version(ctx.obj)
    else:
        raise click.exceptions.NoArgsIsHelpError(ctx)


def _show_server_version(session: Session) -> None:
    """Write two lines; scripts read the server's host from the second."""
    if session.server is None:
        path = find_inventory(session.environ, os.uname().nodename)
        version, host = __version__, f"embedded ({path})"
    else:
        inventory: Any = session.inventory
        version, host = inventory.server_version(), str(session.server)
    values = {"version": version, "host": host}
    lines = [f"{key}: {value}\n" for key, value in values.items()]
    session.show(values if session.as_json else "".join(lines))


def _run(
    name: str,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> int:
    session = Session(name, os.environ if environ is None else environ)

    def code_of(error: PoprunError) -> int:
        if isinstance(error, InventoryBusyError) and session.server is None:
            error.add_note("--api-timeout TIME waits longer.")
        return INVALID if error.exit_code == INVALID else REQUEST_FAILED

    return carry_out(make_program(name), name, argv, obj=session, code_of=code_of)


# Each carries out a command line, and returns its exit code.
vipu = partial(_run, "vipu")
vipu_admin = partial(_run, "vipu-admin")
