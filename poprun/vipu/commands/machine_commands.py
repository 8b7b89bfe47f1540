"""What `vipu` and `vipu-admin` show of clusters, agents and allocations."""

import click

from poprun.vipu.commands.command_line import Noun
from poprun.vipu.commands.nouns import (
    get_command,
    list_command,
    name_argument,
    name_option,
)
from poprun.vipu.commands.session import Session, write
from poprun.vipu.commands.views import machine_views as views
from poprun.vipu.model import AgentStatus

_OF_CLUSTER = name_option("cluster", "Only those of this cluster.")


@click.command("clusters", cls=Noun)
@click.pass_obj
def list_clusters(session: Session) -> None:
    """List clusters."""
    with session.open() as inventory:
        clusters = [
            (cluster, inventory.list_free_blocks(cluster.name))
            for cluster in inventory.list_clusters()
        ]
        if not session.as_json:
            write(views.cluster_table(clusters))
            return
        values = [
            views.cluster_value(cluster, inventory.list_agents(cluster.name), free)
            for cluster, free in clusters
        ]
    session.write_json(values)


@click.command("cluster", cls=Noun)
@name_argument("cluster")
@click.pass_obj
def get_cluster(session: Session, name: str) -> None:
    """Show a cluster."""
    with session.open() as inventory:
        cluster = inventory.get_cluster(name)
        agents = inventory.list_agents(name)
        free = inventory.list_free_blocks(name)
    if session.as_json:
        session.write_json(views.cluster_value(cluster, agents, free))
    else:
        write(views.cluster_properties(cluster, agents, free))


list_allocations = list_command(
    "allocation", "List allocations: the agents that partitions are made from."
)
list_agents = list_command(
    "agent", "List agents, one for each IPU-Machine.", _OF_CLUSTER
)
get_allocation = get_command("allocation", "Show an allocation.")
get_agent = get_command("agent", "Show an agent, and the IPUs of its IPU-Machine.")


@click.command("agents", cls=Noun)
@click.pass_obj
def discover_agents(session: Session) -> None:
    """List the emulated IPU-Machines that are up."""
    with session.open() as inventory:
        agents = inventory.list_agents()
    seen = [agent for agent in agents if agent.status is AgentStatus.UP]
    session.show_all(seen, views.agent_value, views.discovery_table)


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
    if session.as_json:
        session.write_json(
            [value for found in agents for value in views.attribute_value(found)]
        )
    else:
        write(views.attribute_table(agents))
