"""What only `vipu-admin` does: make and remove machines, allocations and users."""

import shlex
from collections.abc import Callable
from typing import Any, TypeVar

import click

from poprun.vipu.commands.command_line import Noun, comma_separated
from poprun.vipu.commands.completion_of_names import names_of
from poprun.vipu.commands.session import Session, write
from poprun.vipu.commands.user_file import new_user_file
from poprun.vipu.commands.views import machine_views as views
from poprun.vipu.model import (
    IPUS_PER_MACHINE,
    AgentStatus,
    ClusterTopology,
    LinkTopology,
)
from poprun.vipu.requests import ClusterRequest
from poprun.vipu.rules.presets import PODS, preset

_F = TypeVar("_F", bound=Callable[..., Any])

_NEW_NAME = click.argument("name")


def _names(kind: str) -> Callable[[_F], _F]:
    return click.argument(
        "names", nargs=-1, required=True, shell_complete=names_of(kind)
    )


@click.command("agent", cls=Noun)
@_NEW_NAME
@click.option("--host", required=True, help="Its name or address.")
@click.option("--port", type=click.IntRange(1, 65535), default=8080, show_default=True)
@click.pass_obj
def create_agent(session: Session, name: str, host: str, port: int) -> None:
    """Create an agent: an IPU-Machine with 4 emulated IPUs."""
    with session.open() as inventory:
        inventory.create_agent(name, host, port)
    session.report_success("create", "agent", name)


@click.command("agent", cls=Noun)
@_names("agents")
@click.option(
    "--status",
    required=True,
    type=click.Choice([status.value for status in AgentStatus], case_sensitive=False),
    help="down: its partitions fail; unknown: they stay PENDING.",
)
@click.pass_obj
def update_agent(session: Session, names: tuple[str, ...], status: str) -> None:
    """Let emulated IPU-Machines fail, or come back."""
    with session.open() as inventory:
        for name in names:
            inventory.set_agent_status(name, AgentStatus(status))
            session.report_success("update", "agent", name)


@click.command("agent", cls=Noun)
@_names("agents")
@click.pass_obj
def remove_agent(session: Session, names: tuple[str, ...]) -> None:
    """Remove agents that are in no cluster."""
    with session.open() as inventory:
        for name in names:
            inventory.remove_agent(name)
            session.report_success("remove", "agent", name)


@click.command("cluster", cls=Noun)
@_NEW_NAME
@click.option(
    "--agents",
    callback=comma_separated,
    metavar="LIST",
    help='Its agents, in their order: "ag1,ag2".',
)
@click.option(
    "--num-agents", type=click.IntRange(min=1), help="In place of --agents: new ones."
)
@click.option(
    "--preset",
    "pod",
    type=click.Choice(list(PODS), case_sensitive=False),
    metavar="POD",
    help=f"In place of --agents: a whole pod, {', '.join(list(PODS)[:6])}, ...",
)
@click.option(
    "--num-ipulinkdomains",
    "--num-ilds",
    "num_ilds",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many ILDs (racks). [default: as few as hold the agents]",
)
@click.option(
    "--topology",
    type=click.Choice([member.value for member in LinkTopology], case_sensitive=False),
    help="Of IPU-Links. [default: torus from 64 IPUs on]",
)
@click.option(
    "--cluster-topology",
    type=click.Choice(
        [member.value for member in ClusterTopology], case_sensitive=False
    ),
    help="Of GW-Links. [default: looped]",
)
@click.pass_obj
def create_cluster(session: Session, /, name: str, **asked: Any) -> None:
    """Create a cluster of IPU-Machines."""
    request = _cluster_request(name, **asked)
    with session.open() as inventory:
        inventory.create_cluster(request)
    session.report_success("create", "cluster", name)


@click.command("cluster", cls=Noun)
@_names("clusters")
@click.pass_obj
def remove_cluster(session: Session, names: tuple[str, ...]) -> None:
    """Remove clusters, and the agents that were made with them."""
    with session.open() as inventory:
        for name in names:
            inventory.remove_cluster(name)
            session.report_success("remove", "cluster", name)


@click.command("allocation", cls=Noun)
@_NEW_NAME
@click.option("--agents", required=True, callback=comma_separated, metavar="LIST")
@click.option(
    "--cluster",
    metavar="NAME",
    shell_complete=names_of("clusters"),
    help="The cluster of the agents. [default: that of the first one]",
)
@click.option(
    "--users",
    callback=comma_separated,
    metavar="LIST",
    help="Who may use it. [default: all users]",
)
@click.pass_obj
def create_allocation(
    session: Session,
    name: str,
    agents: tuple[str, ...],
    cluster: str | None,
    users: tuple[str, ...],
) -> None:
    """Set agents of a cluster apart, for partitions that name the allocation."""
    if not agents:
        raise click.UsageError("--agents is empty. List agents: --agents ag1,ag2")
    with session.open() as inventory:
        if cluster is None:
            cluster = inventory.get_agent(agents[0]).cluster
        if cluster is None:
            raise click.UsageError(
                f"Agent {agents[0]} is in no cluster. Make one of it and others first: "
                "vipu-admin create cluster NAME --agents LIST"
            )
        inventory.create_allocation(name, cluster, agents, users)
    session.report_success("create", "allocation", name)


@click.command("allocation", cls=Noun)
@_names("allocations")
@click.pass_obj
def remove_allocation(session: Session, names: tuple[str, ...]) -> None:
    """Give the agents of allocations back to their clusters."""
    with session.open() as inventory:
        for name in names:
            inventory.remove_allocation(name)
            session.report_success("remove", "allocation", name)


@click.command("user", cls=Noun)
@_NEW_NAME
@click.option(
    "--allocations",
    callback=comma_separated,
    metavar="LIST",
    help="Allocations that are for some users only.",
)
@click.option(
    "--is-admin", "is_admin", is_flag=True, help="May use vipu-admin as well."
)
@click.pass_obj
def create_user(
    session: Session, name: str, allocations: tuple[str, ...], is_admin: bool
) -> None:
    """Create a user; write NAME.vipu-cli.hcl, with the access key, here."""
    server = session.find_server()
    with new_user_file(name) as user_file, session.open(server) as inventory:
        access_key = inventory.create_user(name, allocations, is_admin=is_admin)
        try:
            user_file.write(server, name, access_key)
        except OSError:
            inventory.remove_user(name)  # the key is lost
            raise
    if session.as_json:
        session.write_json(
            {"id": name, "access_key": access_key, "config": user_file.path}
        )
        return
    write(
        f"create user ({name}): success. Access key is '{access_key}'.\n"
        f"vipu configuration file for the user '{name}' written: {user_file.path}\n"
        f"Use 'vipu --config {user_file.path}' to switch to the user context.\n"
    )
    if server is None:
        # The file names the default address, where a server has its own inventory.
        session.warn(
            "The embedded inventory has no use for users. To make "
            "one on a server, name it with --api-host; to serve this inventory: "
            f"vipu-server --secure --database {shlex.quote(inventory.location)}"
        )


@click.command("users", cls=Noun)
@click.pass_obj
def list_users(session: Session) -> None:
    """List users."""
    with session.open() as inventory:
        users = inventory.list_users()
    session.show_all(users, views.user_value, views.user_table)


@click.command("user", cls=Noun)
@click.argument("name", shell_complete=names_of("users"))
@click.pass_obj
def get_user(session: Session, name: str) -> None:
    """Show a user."""
    with session.open() as inventory:
        user = inventory.get_user(name)
    session.show(user, views.user_value, views.user_properties)


@click.command("user", cls=Noun)
@_names("users")
@click.pass_obj
def remove_user(session: Session, names: tuple[str, ...]) -> None:
    """Remove users; their partitions stay."""
    with session.open() as inventory:
        for name in names:
            inventory.remove_user(name)
            session.report_success("remove", "user", name)


def _cluster_request(
    name: str,
    agents: tuple[str, ...],
    num_agents: int | None,
    pod: str | None,
    num_ilds: int | None,
    topology: str | None,
    cluster_topology: str | None,
) -> ClusterRequest:
    """Return how to make a cluster; what is left open is that of a pod of its size."""
    if sum(map(bool, (agents, num_agents, pod))) != 1:
        raise click.UsageError(
            "Say what the cluster consists of by one of --agents, --num-agents and "
            "--preset."
        )
    if pod is not None:
        request = preset(pod, name)
    else:
        machines = len(agents) or num_agents or 0
        racks = -(-machines * IPUS_PER_MACHINE // 64)
        request = ClusterRequest(
            name=name,
            agents=agents,
            num_machines=0 if agents else machines,
            num_ilds=racks,
            topology=LinkTopology.TORUS if machines >= 16 else LinkTopology.MESH,
        )
    if num_ilds is not None:
        request = request._replace(num_ilds=num_ilds)
    if topology is not None:
        request = request._replace(topology=LinkTopology(topology))
    if cluster_topology is not None:
        request = request._replace(gateway_topology=ClusterTopology(cluster_topology))
    return request
