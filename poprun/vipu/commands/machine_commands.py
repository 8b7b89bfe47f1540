"""What `vipu` and `vipu-admin` show of clusters, agents and allocations."""

from functools import partial

import click

from poprun.vipu.commands.command_line import Noun
from poprun.vipu.commands.nouns import (
    get_command,
    list_command,
    name_argument,
    name_option,
)
from poprun.vipu.commands.session import Session
from poprun.vipu.commands.views import machine_views as views
from poprun.vipu.commands.views.pod_picture import ClusterState
from poprun.vipu.commands.views.text_tables import format_values
from poprun.vipu.inventory.interface import Inventory
from poprun.vipu.model import AgentStatus, Cluster

_CLUSTER = views.VIEWS["cluster"]
_OF_CLUSTER = name_option("cluster", "Only those of this cluster.")


@click.command("clusters", cls=Noun)
@click.pass_obj
def list_clusters(session: Session) -> None:
    """List clusters."""
    with session.open() as inventory:
        clusters = inventory.list_clusters()
        states = [read_state(inventory, cluster) for cluster in clusters]
    session.show_all(states, _CLUSTER.value, _CLUSTER.table)


@click.command("cluster", cls=Noun)
@name_argument("cluster")
@click.pass_obj
def get_cluster(session: Session, name: str) -> None:
    """Show a cluster."""
    with session.open() as inventory:
        state = read_state(inventory, inventory.get_cluster(name))
    session.show(state, _CLUSTER.value, _CLUSTER.properties)


def read_state(inventory: Inventory, cluster: Cluster) -> ClusterState:
    """Return a cluster with its agents and its free IPUs."""
    agents = inventory.list_agents(cluster.name)
    return ClusterState(cluster, agents, inventory.list_free_blocks(cluster.name))


@click.command("agents", cls=Noun)
@click.pass_obj
def discover_agents(session: Session) -> None:
    """List the emulated IPU-Machines that are up."""
    with session.open() as inventory:
        agents = inventory.list_agents()
    seen = [agent for agent in agents if agent.status is AgentStatus.UP]
    table = partial(format_values, views.DISCOVERED)
    session.show_all(seen, views.agent_value, table)


@click.command("ipu-attrs", cls=Noun)
@_OF_CLUSTER
@name_option("agent", "Only those of this agent.")
@click.pass_obj
def list_ipu_attributes(
    session: Session, cluster: str | None, agent: str | None
) -> None:
    """List the attributes of each IPU."""
    with session.open() as inventory:
        agents = (
            inventory.list_agents(cluster)
            if agent is None
            else (inventory.get_agent(agent),)
        )
    session.show(agents, views.attribute_values, views.attribute_table)


LIST = (
    list_command(
        "allocation", "List allocations: the agents that partitions are made from."
    ),
    list_clusters,
    list_command("agent", "List agents, one for each IPU-Machine.", _OF_CLUSTER),
    list_ipu_attributes,
)
GET = (
    get_command("allocation", "Show an allocation."),
    get_cluster,
    get_command("agent", "Show an agent, and the IPUs of its IPU-Machine."),
)
