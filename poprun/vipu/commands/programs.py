"""The verbs of `vipu` and of `vipu-admin`, and what they do without one."""

import os

import click

from poprun import __version__
from poprun.vipu.commands import machine_commands as machines
from poprun.vipu.commands import partition_commands as partitions
from poprun.vipu.commands.command_line import Program, Verb
from poprun.vipu.commands.session import Session, write
from poprun.vipu.commands.show_command import show
from poprun.vipu.inventory.location import find_inventory

_HELP = {
    "vipu": "Make, show and remove partitions of emulated IPUs.",
    "vipu-admin": "Administer emulated IPUs: machines, users and all partitions.",
}
# By program and verb.
_VERBS = {
    "vipu": {
        "list": "List partitions and what they are made from.",
        "get": "Show a partition and the like.",
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
        "update": "Change a partition, or let a machine fail.",
        "reset": "Reset a partition.",
        "remove": "Remove machines, users and partitions.",
        "discover": "Look for IPU-Machines.",
    },
}
_OF_USERS = (*partitions.COMMANDS, *machines.COMMANDS)
_OF_ADMINS = machines.ADMIN_COMMANDS


def make_program(name: str) -> Program:
    """Return the command for users, `vipu`, or that for administrators."""
    verbs = []
    for verb, help_ in _VERBS[name].items():
        nouns = [command for command in _OF_USERS if command.verb == verb]
        of_admins = [command for command in _OF_ADMINS if command.verb == verb]
        if name == "vipu-admin":
            nouns, of_admins = nouns + of_admins, []
        verbs.append(Verb(verb, help_, nouns, of_admins))
    return Program(
        name,
        (*verbs, show),
        () if name == "vipu-admin" else _VERBS["vipu-admin"],
        help=_HELP[name],
        callback=_without_verb,
        params=[
            click.Option(["--version"], is_flag=True, help="Write the version."),
            click.Option(
                ["--server-version"],
                is_flag=True,
                help="Write the version and the address of the server.",
            ),
        ],
    )


@click.pass_context
def _without_verb(ctx: click.Context, version: bool, server_version: bool) -> None:
    """Do what the options of the program itself ask for."""
    if ctx.invoked_subcommand is not None:
        if version or server_version:
            raise click.UsageError("--version and --server-version stand alone.")
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
