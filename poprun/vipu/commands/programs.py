"""The verbs of `vipu` and of `vipu-admin`, and what they do without one."""

import os

import click

from poprun import __version__
from poprun.vipu.commands import admin_commands as admin
from poprun.vipu.commands import machine_commands as machines
from poprun.vipu.commands import partition_commands as partitions
from poprun.vipu.commands.command_line import Program, Verb
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


def make_vipu() -> Program:
    """Return the command for users."""
    verbs = (
        Verb(
            "list",
            "List partitions and what they are made from.",
            (
                partitions.list_partitions,
                machines.list_allocations,
                machines.list_clusters,
                machines.list_agents,
                machines.list_ipu_attributes,
            ),
        ),
        Verb(
            "get",
            "Show a partition and the like.",
            (
                partitions.get_partition,
                machines.get_allocation,
                machines.get_cluster,
                machines.get_agent,
            ),
        ),
        Verb("create", "Create a partition.", (partitions.create_partition,)),
        Verb("update", "Change a partition.", (partitions.update_partition,)),
        Verb("reset", "Reset a partition.", (partitions.reset_partition,)),
        Verb("remove", "Remove a partition.", (partitions.remove_partition,)),
        show,
    )
    help_ = "Make, show and remove partitions of emulated IPUs."
    return Program(
        "vipu",
        verbs,
        make_vipu_admin,
        help=help_,
        callback=_without_verb,
        params=list(_VERSIONS),
    )


def make_vipu_admin() -> Program:
    """Return the command for administrators, who see what all users have."""
    verbs = (
        Verb(
            "list",
            "List machines, users and partitions.",
            (
                machines.list_agents,
                machines.list_clusters,
                machines.list_allocations,
                machines.list_ipu_attributes,
                partitions.list_partitions,
                admin.list_users,
            ),
        ),
        Verb(
            "get",
            "Show a machine, a user or a partition.",
            (
                machines.get_agent,
                machines.get_cluster,
                machines.get_allocation,
                partitions.get_partition,
                admin.get_user,
            ),
        ),
        Verb(
            "create",
            "Create machines, users and partitions.",
            (
                admin.create_agent,
                admin.create_cluster,
                admin.create_allocation,
                partitions.create_partition,
                admin.create_user,
            ),
        ),
        Verb(
            "update",
            "Change a partition, or let a machine fail.",
            (admin.update_agent, partitions.update_partition),
        ),
        Verb("reset", "Reset a partition.", (partitions.reset_partition,)),
        Verb(
            "remove",
            "Remove machines, users and partitions.",
            (
                admin.remove_agent,
                admin.remove_cluster,
                admin.remove_allocation,
                partitions.remove_partition,
                admin.remove_user,
            ),
        ),
        Verb("discover", "Look for IPU-Machines.", (machines.discover_agents,)),
        show,
    )
    help_ = "Administer emulated IPUs: machines, users and all partitions."
    return Program(
        "vipu-admin", verbs, help=help_, callback=_without_verb, params=list(_VERSIONS)
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
