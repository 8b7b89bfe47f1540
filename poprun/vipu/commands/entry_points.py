"""`vipu` and `vipu-admin`: their verbs."""

import os
from collections.abc import Mapping, Sequence
from functools import partial

import click

from poprun import __version__
from poprun.errors import INVALID, REQUEST_FAILED, PoprunError
from poprun.texts.click_program import carry_out
from poprun.texts.stdout import write
from poprun.vipu.commands import machine_commands as machines
from poprun.vipu.commands import partition_commands as partitions
from poprun.vipu.commands.command_line import Command, Group
from poprun.vipu.commands.session import Session
from poprun.vipu.commands.show_command import show
from poprun.vipu.errors import InventoryBusyError
from poprun.vipu.inventory.location import find_inventory

_HELP = {
    "vipu": "Create, show and remove partitions of emulated IPUs.",
    "vipu-admin": "Administer emulated IPUs: machines, users and all partitions.",
}
# By program and verb.
_VERBS = {
    "vipu": {
        "list": "List partitions, clusters, allocations and agents.",
        "get": "Show a partition, cluster, allocation or agent.",
        "create": "Create a partition.",
        "update": "Change a partition.",
        "reset": "Reset a partition.",
        "remove": "Remove a partition.",
    },
    # Administrators see what all users have.
    "vipu-admin": {
        "list": "List machines, users and partitions.",
        "get": "Show a machine, a user or a partition.",
        "create": "Create machines, users and partitions.",
        "update": "Change a partition, or make a machine fail.",
        "reset": "Reset a partition.",
        "remove": "Remove machines, users and partitions.",
        "discover": "Find IPU-Machines.",
    },
}
# Names of earlier releases.
_ALIASES = {"remove": ("delete",)}
_OF_USERS = (*partitions.COMMANDS, *machines.COMMANDS)
_OF_ADMINS = machines.ADMIN_COMMANDS


def make_program(name: str) -> Group:
    """Return the command for users, `vipu`, or that for administrators."""
    is_for_admins = name == "vipu-admin"
    own = (*_OF_USERS, *_OF_ADMINS) if is_for_admins else _OF_USERS
    of_others = () if is_for_admins else _OF_ADMINS
    verbs = []
    for verb, help_ in _VERBS[name].items():
        group = Group(
            verb,
            [command for command in own if command.verb == verb],
            [command for command in of_others if command.verb == verb],
            *("'{path}' takes no {word}, but {names}.", "or"),
            help=help_,
            subcommand_metavar="WHAT [ARGS]...",
        )
        group.aliases = _ALIASES.get(verb, ())
        verbs.append(group)
    return Group(
        name,
        (*verbs, show),
        [] if is_for_admins else list(map(Command, _VERBS["vipu-admin"])),
        *("There is no command {word}. There are {names}.", "and"),
        help=_HELP[name],
        subcommand_metavar="COMMAND [ARGS]...",
        invoke_without_command=True,
        callback=_without_verb,
        params=[
            click.Option(["--version"], is_flag=True, help="Show the version."),
            click.Option(
                ["--server-version"],
                is_flag=True,
                help="Show the version and the address of the server.",
            ),
        ],
    )


@click.pass_context
def _without_verb(ctx: click.Context, version: bool, server_version: bool) -> None:
    """Do what the options of the program itself ask for."""
    if ctx.invoked_subcommand is not None:
        if version or server_version:
            raise click.UsageError(
                "--version and --server-version cannot be combined with a command."
            )
        return
    if version:
        write(f"{ctx.info_name} {__version__}\n")
    elif server_version:
        _write_server_version(ctx.obj)
    else:
        raise click.exceptions.NoArgsIsHelpError(ctx)


def _write_server_version(session: Session) -> None:
    """Write two lines, the second of which scripts read the server's host from."""
    from poprun.vipu.client.server_inventory import ServerInventory

    server = session.find_server()
    if server is None:
        version = __version__
        path = find_inventory(session.environ, os.uname().nodename)
        host = f"embedded ({path})"
    else:
        with session.open(server) as inventory:
            assert isinstance(inventory, ServerInventory)
            version, host = inventory.server_version(), str(server)
    if session.as_json:
        session.write_json({"version": version, "host": host})
    else:
        write(f"version: {version}\nhost: {host}\n")


def _run(
    name: str,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> int:
    session = Session(name, os.environ if environ is None else environ)

    def code_of(error: PoprunError) -> int:
        if isinstance(error, InventoryBusyError) and session.find_server() is None:
            error.add_note("--api-timeout TIME waits longer.")
        return INVALID if error.exit_code == INVALID else REQUEST_FAILED

    return carry_out(make_program(name), name, argv, obj=session, code_of=code_of)


# Each carries out a command line, and returns its exit code.
vipu = partial(_run, "vipu")
vipu_admin = partial(_run, "vipu-admin")
