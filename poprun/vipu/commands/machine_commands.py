"""What `vipu` and `vipu-admin` show of clusters, agents and allocations."""

import click

from poprun.vipu.commands.command_line import Noun
from poprun.vipu.commands.completion_of_names import names_of
from poprun.vipu.commands.session import Session, write
from poprun.vipu.commands.views import machine_views as views
from poprun.vipu.model import AgentStatus

_OF_CLUSTER = click.option(
    "--cluster",
    metavar="NAME",
    shell_complete=names_of("clusters"),
    help="Only those of this cluster.",
)


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
@click.argument("name", shell_complete=names_of("clusters"))
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


@click.command("agents", cls=Noun)
@_OF_CLUSTER
@click.pass_obj
def list_agents(session: Session, cluster: str | None) -> None:
    """List agents, one for each IPU-Machine."""
    with session.open() as inventory:
        agents = inventory.list_agents(cluster)
    session.show_all(agents, views.agent_value, views.agent_table)


@click.command("agent", cls=Noun)
@click.argument("name", shell_complete=names_of("agents"))
@click.pass_obj
def get_agent(session: Session, name: str) -> None:
    """Show an agent, and the IPUs of its IPU-Machine."""
    with session.open() as inventory:
        agent = inventory.get_agent(name)
    session.show(agent, views.agent_value, views.agent_properties)


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
@click.option(
    "--agent",
    metavar="NAME",
    shell_complete=names_of("agents"),
    help="Only those of this agent.",
)
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


@click.command("allocations", cls=Noun)
@click.pass_obj
def list_allocations(session: Session) -> None:
    """List allocations: the agents that partitions are made from."""
    with session.open() as inventory:
        allocations = inventory.list_allocations()
    session.show_all(allocations, views.allocation_value, views.allocation_table)


@click.command("allocation", cls=Noun)
@click.argument("name", shell_complete=names_of("allocations"))
@click.pass_obj
def get_allocation(session: Session, name: str) -> None:
    """Show an allocation."""
    with session.open() as inventory:
        allocation = inventory.get_allocation(name)
    session.show(allocation, views.allocation_value, views.allocation_properties)
