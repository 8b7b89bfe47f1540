"""The verbs of `vipu` and of `vipu-admin`, and what they do without one."""

import os

import click

from poprun import __version__
from poprun.vipu.commands import admin_commands as admin
from poprun.vipu.commands import machine_commands as machines
from poprun.vipu.commands import partition_commands as partitions
from poprun.vipu.commands.command_line import Command, Program, Verb
from poprun.vipu.commands.session import Session, write
from poprun.vipu.commands.show_command import show
from poprun.vipu.inventory.location import find_inventory

# By verb: its help in `vipu` and in `vipu-admin`, the nouns of both, and those of
# administrators alone.
_VERBS: dict[str, tuple[str, str, tuple[Command, ...], tuple[Command, ...]]] = {
    "list": (
        "List partitions and what they are made from.",
        "List machines, users and partitions.",
        (partitions.list_partitions, *machines.LIST),
        (admin.list_users,),
    ),
    "get": (
        "Show a partition and the like.",
        "Show a machine, a user or a partition.",
        (partitions.get_partition, *machines.GET),
        (admin.get_user,),
    ),
    "create": (
        "Create a partition.",
        "Create machines, users and partitions.",
        (partitions.create_partition,),
        admin.CREATE,
    ),
    "update": (
        "Change a partition.",
        "Change a partition, or let a machine fail.",
        (partitions.update_partition,),
        (admin.update_agent,),
    ),
    "reset": (
        "Reset a partition.",
        "Reset a partition.",
        (partitions.reset_partition,),
        (),
    ),
    "remove": (
        "Remove a partition.",
        "Remove machines, users and partitions.",
        (partitions.remove_partition,),
        admin.REMOVE,
    ),
    "discover": ("", "Look for IPU-Machines.", (), machines.DISCOVER),
}
# By program: its help. Administrators see what all users have.
_HELP = {
    "vipu": "Make, show and remove partitions of emulated IPUs.",
    "vipu-admin": "Administer emulated IPUs: machines, users and all partitions.",
}


def make_program(name: str) -> Program:
    """Return the command for users, `vipu`, or that for administrators."""
    verbs: list[click.Command] = []
    for verb, (help_, help_of_admins, nouns, of_admins) in _VERBS.items():
        if name == "vipu-admin":
            verbs.append(Verb(verb, help_of_admins, (*nouns, *of_admins)))
        elif nouns:
            verbs.append(Verb(verb, help_, nouns, of_admins))
    return Program(
        name,
        (*verbs, show),
        _VERBS if name == "vipu" else (),
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
    server = session.find_server()
    if server is None:
        version = __version__
        path = find_inventory(session.environ, os.uname().nodename)
        host = f"embedded ({path})"
    else:
        version, host = session.ask_version(server), str(server)
    if session.as_json:
        session.write_json({"version": version, "host": host})
    else:
        write(f"version: {version}\nhost: {host}\n")
