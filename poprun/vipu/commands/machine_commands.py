"""What `vipu` and `vipu-admin` show of clusters, agents, allocations and users."""

from poprun.vipu.commands import nouns
from poprun.vipu.commands.options import name_option
from poprun.vipu.commands.session import Session
from poprun.vipu.commands.views.emulated_hardware import ipus_of
from poprun.vipu.commands.views.machine_views import VIEWS
from poprun.vipu.model import AgentStatus

_OF_CLUSTER = name_option("cluster", "Only those of this cluster.")


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


COMMANDS = (
    nouns.list_command(
        "allocation", "List allocations: the agents that partitions are made from."
    ),
    nouns.list_command("cluster", "List clusters."),
    nouns.list_command("agent", "List agents, one for each IPU-Machine.", _OF_CLUSTER),
    nouns.make_command(
        *("list ipu-attrs", "List the attributes of each IPU.", _list_ipus),
        _OF_CLUSTER,
        name_option("agent", "Only those of this agent."),
    ),
    nouns.get_command("allocation", "Show an allocation."),
    nouns.get_command("cluster", "Show a cluster."),
    nouns.get_command("agent", "Show an agent, and the IPUs of its IPU-Machine."),
)
# Of administrators alone.
DISCOVER = nouns.make_command(
    "discover agents", "List the emulated IPU-Machines that are up.", _discover
)
