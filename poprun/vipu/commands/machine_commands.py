"""Commands for machines and users: `vipu` shows machines, `vipu-admin` changes them."""

import shlex
from typing import Any

import click

from poprun.vipu import model
from poprun.vipu.client import user_file
from poprun.vipu.client.server_address import DEFAULT_HOST, ServerAddress
from poprun.vipu.commands import views
from poprun.vipu.commands.command_line import (
    LIST,
    NAME,
    PORT,
    command,
    operation,
    option,
)
from poprun.vipu.commands.session import Session
from poprun.vipu.errors import InventoryError
from poprun.vipu.model import IPUS_PER_MACHINE, AgentStatus, ClusterRequest
from poprun.vipu.rules.checks import check_name
from poprun.vipu.rules.presets import PODS, default_shape

Names = tuple[str, ...]

_IN_CLUSTER = option("--cluster", NAME, "List only those in this cluster.")
_OF_AGENT = option("--agent", NAME, "List only those of this agent.")
_POD = {"type": click.Choice(list(PODS), case_sensitive=False), "metavar": "POD"}
_STATUS_HELP = "down: its partitions fail; unknown: they stay PENDING."


@command("list ipu-attrs", _IN_CLUSTER, _OF_AGENT)
def list_ipus(session: Session, cluster: str | None, agent: str | None) -> object:
    """List the attributes of each IPU."""
    if agent is None:
        agents = session.inventory.list_agents(cluster)
    else:
        agents = (session.inventory.get_agent(agent),)
    if not session.as_json:
        return views.attribute_list(agents)
    return [
        {"agent": each.name, "ipu": n, "attributes": views.ipu_attributes(each, n)}
        for each in agents
        for n in range(IPUS_PER_MACHINE)
    ]


@command("discover agents", for_admins=True)
def discover_agents(session: Session) -> object:
    """List the emulated IPU-Machines that are up."""
    agents = session.inventory.list_agents()
    up = [agent for agent in agents if agent.status is AgentStatus.UP]
    return views.list_of("discovered agent", up, as_json=session.as_json)


@command(
    "create allocation",
    option("--agents", LIST, required=True),
    option("--cluster", NAME, "The agents' cluster. [default: the first's]"),
    option("--users", LIST, "The users who may use it. [default: all]"),
)
def create_allocation(
    session: Session, name: str, agents: Names, cluster: str | None, users: Names
) -> None:
    """Reserve agents of a cluster for partitions that name the allocation."""
    cluster = cluster or session.inventory.get_agent(agents[0]).cluster
    if cluster is None:
        raise click.UsageError(
            f"Agent {agents[0]} is in no cluster. Create a cluster with it first: "
            "vipu-admin create cluster NAME --agents LIST"
        )
    session.inventory.create_allocation(name, cluster, agents, users)


@command(
    "create cluster",
    option("--num-agents", int, "Create new agents, instead of --agents."),
    option(
        "--preset pod",
        _POD,
        "Create a whole pod, instead of --agents: pod4, pod16, pod64, ...",
    ),
    option("--agents", LIST, 'Its agents, in order: "ag1,ag2".'),
    option(
        "--num-ipulinkdomains --num-ilds num_ilds",
        int,
        "The number of ILDs (racks). [default: as few as possible]",
    ),
    option(
        "--topology",
        model.LinkTopology,
        "The topology of IPU-Links. [default: torus from 64 IPUs]",
    ),
    option(
        "--cluster-topology gateway_topology",
        model.ClusterTopology,
        "The topology of GW-Links. [default: looped]",
    ),
    option("--hosts", LIST, 'The host servers, in order: "h[1-2],n3".'),
)
def create_cluster(
    session: Session,
    name: str,
    agents: Names,
    num_agents: int | None,
    pod: str | None,
    **more: Any,
) -> None:
    """Create a cluster of IPU-Machines."""
    if sum(map(bool, (agents, num_agents, pod))) != 1:
        raise click.UsageError(
            "Describe the cluster with one of --agents, --num-agents and --preset."
        )
    num_machines = num_agents or PODS.get(pod or "", 0) // IPUS_PER_MACHINE
    num_ipus = (len(agents) or num_machines) * IPUS_PER_MACHINE
    given = {key: value for key, value in more.items() if value not in (None, ())}
    shape = default_shape(num_ipus) | given
    session.inventory.create_cluster(
        ClusterRequest(name=name, agents=agents, num_machines=num_machines, **shape)
    )


@command(
    "create user",
    option("--allocations", LIST, "Let the user use only these allocations."),
    option("--is-admin", bool, "Let the user use vipu-admin as well."),
)
def create_user(
    session: Session, name: str, allocations: Names, is_admin: bool
) -> object:
    """Create a user, and write the access key to ./NAME.vipu-cli.hcl."""
    check_name("user", name)
    server, path = session.server, f"{name}.vipu-cli.hcl"
    address = server or ServerAddress(DEFAULT_HOST)
    inventory = session.inventory
    try:
        key = user_file.create_user(
            inventory, path, address, name, allocations, is_admin=is_admin
        )
    except FileExistsError as error:
        raise InventoryError(
            f"The file {path} with another access key already exists here. Move or "
            "remove it, or change to another directory."
        ) from error
    except OSError as error:
        raise InventoryError(
            f"The file {path} for the access key cannot be written: {error.strerror}. "
            "Change to a writable directory."
        ) from error
    if session.as_json:
        return {"id": name, "access_key": key, "config": path}
    if server is None:
        # The file names the default address, where a server has its own inventory.
        session.warn(
            "The embedded inventory has no users. To create one on a server, name it "
            "with --api-host; to serve this inventory: vipu-server --secure "
            f"--database {shlex.quote(inventory.location)}"
        )
    return (
        f"create user ({name}): success. Access key is '{key}'.\n"
        f"vipu configuration file for the user '{name}' written: {path}\n"
        f"Use 'vipu --config {path}' to switch to the user context.\n"
    )


COMMANDS = (
    operation(
        "list allocations",
        "List allocations: the agents that partitions are made from.",
    ),
    operation("list clusters", "List clusters."),
    operation("list agents", "List agents, one for each IPU-Machine.", _IN_CLUSTER),
    list_ipus,
    operation("get allocation", "Show an allocation."),
    operation("get cluster", "Show a cluster."),
    operation("get agent", "Show an agent, and the IPUs of its IPU-Machine."),
    operation("list users", "List users."),
    operation("get user", "Show a user."),
    operation(
        "create agent",
        "Create an agent: an IPU-Machine with 4 emulated IPUs.",
        option("--host", {"required": True}, "Its name or address."),
        option("--port", PORT, default=8080, show_default=True),
    ),
    create_allocation,
    create_cluster,
    create_user,
    operation(
        "update agent",
        "Make emulated IPU-Machines fail or recover.",
        option("--status", AgentStatus, _STATUS_HELP, required=True),
    ),
    operation(
        "update cluster",
        "Set the host servers of clusters, for jobs too large for one host.",
        option("--hosts", LIST, 'The hosts: "h[1-2],n3"; "" for none.', required=True),
    ),
    operation("remove agent", "Remove agents that are in no cluster."),
    operation(
        "remove cluster", "Remove clusters, and the agents that were created with them."
    ),
    operation(
        "remove allocation",
        "Remove allocations, and return their agents to the clusters.",
    ),
    operation("remove user", "Remove users; their partitions stay."),
    discover_agents,
)
