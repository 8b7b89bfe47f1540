"""The verbs of `vipu` and of `vipu-admin`, and what they do without one."""

import os
from collections.abc import Callable, Sequence

import click

from poprun import __version__
from poprun.vipu.commands import admin_commands as admin
from poprun.vipu.commands import machine_commands as machines
from poprun.vipu.commands import partition_commands as partitions
from poprun.vipu.commands.command_line import Noun, Program, Verb
from poprun.vipu.commands.session import Session, write
from poprun.vipu.commands.show_command import show
from poprun.vipu.inventory.location import find_inventory

_VERSIONS = (
    click.Option(["--version"], is_flag=True, help="Write the version."),
    click.Option(
        ["--server-version"],
        is_flag=True,
        help="Write the version and the address of the server.",
    ),
)


# By verb: its help in `vipu` and in `vipu-admin`, the nouns of both, and those of
# administrators alone.
_VERBS: dict[str, tuple[str, str, tuple[Noun, ...], tuple[Noun, ...]]] = {
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
        (*admin.CREATE, admin.create_cluster, admin.create_user),
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
    "discover": ("", "Look for IPU-Machines.", (), (machines.discover_agents,)),
}


def make_vipu() -> Program:
    """Return the command for users."""
    help_ = "Make, show and remove partitions of emulated IPUs."
    verbs = [
        Verb(verb, words, nouns)
        for verb, (words, _, nouns, _) in _VERBS.items()
        if nouns
    ]
    return _program("vipu", help_, verbs, make_vipu_admin)


def make_vipu_admin() -> Program:
    """Return the command for administrators, who see what all users have."""
    help_ = "Administer emulated IPUs: machines, users and all partitions."
    verbs = [
        Verb(verb, words, (*nouns, *more))
        for verb, (_, words, nouns, more) in _VERBS.items()
    ]
    return _program("vipu-admin", help_, verbs)


def _program(
    name: str,
    help_: str,
    verbs: Sequence[Verb],
    make_other: Callable[[], Program] | None = None,
) -> Program:
    return Program(
        name,
        (*verbs, show),
        make_other,
        help=help_,
        callback=_without_verb,
        params=list(_VERSIONS),
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
