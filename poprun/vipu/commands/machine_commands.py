"""Commands for machines and users: `vipu` shows machines, `vipu-admin` changes them."""

import shlex
from dataclasses import replace
from typing import Any

import click

from poprun.texts.stdout import write
from poprun.vipu import model
from poprun.vipu.client.server_address import DEFAULT_HOST, ServerAddress
from poprun.vipu.client.user_file import create_user
from poprun.vipu.commands import nouns
from poprun.vipu.commands.nouns import Table, name_option, options_of
from poprun.vipu.commands.session import Session
from poprun.vipu.commands.views.emulated_hardware import ipus_of
from poprun.vipu.commands.views.machine_views import VIEWS
from poprun.vipu.errors import InventoryError
from poprun.vipu.inventory.interface import Inventory, operation
from poprun.vipu.model import AgentStatus, LinkTopology
from poprun.vipu.requests import ClusterRequest
from poprun.vipu.rules.checks import check_name
from poprun.vipu.rules.presets import PODS, preset


def _discover(session: Session) -> None:
    with session.open() as inventory:
        agents = inventory.list_agents()
    up = [agent for agent in agents if agent.status is AgentStatus.UP]
    session.show_all(VIEWS["discovered agent"], up)


def _list_ipus(session: Session, cluster: str | None, agent: str | None) -> None:
    with session.open() as inventory:
        if agent is None:
            agents = inventory.list_agents(cluster)
        else:
            agents = (inventory.get_agent(agent),)
    ipus = [ipu for agent_ in agents for ipu in ipus_of(agent_)]
    session.show_all(VIEWS["ipu"], ipus)


def _create_allocation(
    session: Session,
    inventory: Inventory,
    name: str,
    agents: tuple[str, ...],
    cluster: str | None,
    users: tuple[str, ...],
) -> None:
    cluster = cluster or inventory.get_agent(agents[0]).cluster
    if cluster is None:
        raise click.UsageError(
            f"Agent {agents[0]} is in no cluster. Create a cluster with it first: "
            "vipu-admin create cluster NAME --agents LIST"
        )
    inventory.create_allocation(name, cluster, agents, users)


def _create_cluster(
    session: Session,
    /,
    name: str,
    agents: tuple[str, ...],
    num_agents: int | None,
    pod: str | None,
    **choices: Any,
) -> None:
    """Make a cluster; what is left open is that of a pod of its size."""
    if sum(map(bool, (agents, num_agents, pod))) != 1:
        raise click.UsageError(
            "Describe the cluster with one of --agents, --num-agents and --preset."
        )
    if pod is not None:
        request = preset(pod, name)
    else:
        machines = len(agents) or num_agents or 0
        request = ClusterRequest(
            name=name,
            agents=agents,
            num_machines=0 if agents else machines,
            num_ilds=-(-machines * model.IPUS_PER_MACHINE // model.LARGEST_ILD),
            topology=LinkTopology.TORUS if machines >= 16 else LinkTopology.MESH,
        )
    given = {key: value for key, value in choices.items() if value not in (None, ())}
    with session.open() as inventory:
        inventory.create_cluster(replace(request, **given))
    session.report_success("create", "cluster", name)


def _create_user(
    session: Session, name: str, allocations: tuple[str, ...], is_admin: bool
) -> None:
    check_name("user", name)
    server, path = session.find_server(), f"{name}.vipu-cli.hcl"
    address = server or ServerAddress(DEFAULT_HOST)
    with session.open(server) as inventory:
        try:
            access_key = create_user(
                inventory, path, address, name, allocations, is_admin=is_admin
            )
        except FileExistsError as error:
            raise InventoryError(
                f"The file {path} with another access key already exists here. Move or "
                "remove it, or change to another directory."
            ) from error
        except OSError as error:
            raise InventoryError(
                f"The file {path} for the access key cannot be written: "
                f"{error.strerror}. Change to a writable directory."
            ) from error
    if session.as_json:
        session.write_json({"id": name, "access_key": access_key, "config": path})
        return
    write(
        f"create user ({name}): success. Access key is '{access_key}'.\n"
        f"vipu configuration file for the user '{name}' written: {path}\n"
        f"Use 'vipu --config {path}' to switch to the user context.\n"
    )
    if server is None:
        # The file names the default address, where a server has its own inventory.
        session.warn(
            "The embedded inventory has no users. To create one on a server, name it "
            "with --api-host; to serve this inventory: vipu-server --secure "
            f"--database {shlex.quote(inventory.location)}"
        )


_NAME = click.argument("name")
_OF_CLUSTER = name_option("cluster", "List only those in this cluster.")
_STATUS_HELP = "down: its partitions fail; unknown: they stay PENDING."
_PORT = click.IntRange(1, 65535)

_CLUSTER_OPTIONS: Table = {
    "agents": ("--agents", 'Its agents, in order: "ag1,ag2".'),
    "num_ilds": (
        "--num-ipulinkdomains --num-ilds",
        "The number of ILDs (racks). [default: as few as possible]",
    ),
    "topology": (
        "--topology",
        "The topology of IPU-Links. [default: torus from 64 IPUs]",
    ),
    "gateway_topology": (
        "--cluster-topology",
        "The topology of GW-Links. [default: looped]",
    ),
    "hosts": ("--hosts", 'The host servers of its pods, in order: "h[1-2],n3".'),
}
_USER_OPTIONS: Table = {
    "allocations": ("--allocations", "Let the user use only these allocations."),
    "is_admin": ("--is-admin", "Let the user use vipu-admin as well."),
}
COMMANDS = (
    nouns.list_command(
        "allocation", "List allocations: the agents that partitions are made from."
    ),
    nouns.list_command("cluster", "List clusters."),
    nouns.list_command("agent", "List agents, one for each IPU-Machine.", _OF_CLUSTER),
    nouns.make_command(
        *("list ipu-attrs", "List the attributes of each IPU.", _list_ipus),
        _OF_CLUSTER,
        name_option("agent", "List only those of this agent."),
    ),
    nouns.get_command("allocation", "Show an allocation."),
    nouns.get_command("cluster", "Show a cluster."),
    nouns.get_command("agent", "Show an agent, and the IPUs of its IPU-Machine."),
)
# Of administrators alone.
ADMIN_COMMANDS = (
    nouns.change_command(
        "create agent",
        "Create an agent: an IPU-Machine with 4 emulated IPUs.",
        {
            "host": ("--host", "Its name or address."),
            "port": (
                *("--port", ""),
                {"type": _PORT, "default": 8080, "show_default": True},
            ),
        },
    ),
    nouns.change_command(
        "create allocation",
        "Reserve agents of a cluster for partitions that name the allocation.",
        {
            "agents": ("--agents", ""),
            "cluster": (
                "--cluster",
                "The cluster of the agents. [default: the first agent's]",
                {"required": False},
            ),
            "users": ("--users", "The users who may use it. [default: all]"),
        },
        perform=_create_allocation,
    ),
    nouns.make_command(
        "create cluster",
        "Create a cluster of IPU-Machines.",
        _create_cluster,
        _NAME,
        click.option(
            "--num-agents",
            type=click.IntRange(min=1),
            help="Create new agents, instead of --agents.",
        ),
        click.option(
            *("--preset", "pod"),
            type=click.Choice(list(PODS), case_sensitive=False),
            metavar="POD",
            help=(
                "Create a whole pod, instead of --agents: "
                f"{', '.join(list(PODS)[:6])}, ..."
            ),
        ),
        *options_of(ClusterRequest, _CLUSTER_OPTIONS),
    ),
    nouns.make_command(
        "create user",
        "Create a user, and write the access key to ./NAME.vipu-cli.hcl.",
        _create_user,
        _NAME,
        *options_of(operation("create_user").arguments, _USER_OPTIONS),
    ),
    nouns.change_command(
        "update agent",
        "Make emulated IPU-Machines fail or recover.",
        {"status": ("--status", _STATUS_HELP)},
    ),
    nouns.change_command(
        "update cluster",
        "Set the host servers of clusters, for jobs too large for one host.",
        {"hosts": ("--hosts", 'The hosts, in order: "h[1-2],n3"; "" for none.')},
    ),
    nouns.change_command("remove agent", "Remove agents that are in no cluster."),
    nouns.change_command(
        "remove cluster", "Remove clusters, and the agents that were created with them."
    ),
    nouns.change_command(
        "remove allocation",
        "Remove allocations, and return their agents to the clusters.",
    ),
    nouns.change_command("remove user", "Remove users; their partitions stay."),
    nouns.list_command("user", "List users."),
    nouns.get_command("user", "Show a user."),
    nouns.make_command(
        "discover agents", "List the emulated IPU-Machines that are up.", _discover
    ),
)
