"""Clusters, agents, allocations and users as the commands show them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from poprun.vipu.commands.views import emulated_hardware
from poprun.vipu.commands.views.partition_views import ipu_names, names_by_machine
from poprun.vipu.commands.views.pod_picture import free_text
from poprun.vipu.commands.views.text_tables import format_properties, format_table
from poprun.vipu.model import (
    IPUS_PER_MACHINE,
    Agent,
    Allocation,
    Block,
    Cluster,
    User,
)


def cluster_table(clusters: Sequence[tuple[Cluster, Sequence[Block]]]) -> str:
    """Return the table of `list clusters`: clusters, each with its free IPUs."""
    header = ("Cluster", "ILDs", "Size", "Topology", "Cluster Topology", "Free")
    rows = [
        (
            cluster.name,
            str(cluster.num_ilds),
            str(cluster.size),
            cluster.topology.name,
            cluster.gateway_topology.name,
            str(sum(block.size for block in free)),
        )
        for cluster, free in clusters
    ]
    return format_table(header, rows)


def cluster_properties(
    cluster: Cluster, agents: Sequence[Agent], free: Sequence[Block]
) -> str:
    """Return the table of `get cluster`."""
    return format_properties(
        [
            ("Cluster ID", cluster.name),
            ("ILDs", str(cluster.num_ilds)),
            ("IPUs per ILD", str(cluster.ild_size)),
            ("Size", str(cluster.size)),
            ("Free", free_text(free)),
            ("Topology", cluster.topology.value),
            ("Cluster Topology", cluster.gateway_topology.value),
            ("Made for a job", "yes" if cluster.automatic else "no"),
            ("Agents", " ".join(agent.name for agent in agents)),
        ]
    )


def cluster_value(
    cluster: Cluster, agents: Sequence[Agent], free: Sequence[Block]
) -> dict[str, Any]:
    """Return a cluster for JSON, in the shape of the original's `--showjson`."""
    size, names = cluster.ild_size, names_by_machine(agents)
    return {
        "id": cluster.name,
        "spec": {
            "topology": cluster.topology.value,
            "cluster_topology": cluster.gateway_topology.value,
            "ipu_link_domains": [
                {"ipus": ipu_names(range(ild * size, (ild + 1) * size), names)}
                for ild in range(cluster.num_ilds)
            ],
        },
        "automatic": cluster.automatic,
        "free": sum(block.size for block in free),
    }


def agent_table(agents: Sequence[Agent]) -> str:
    """Return the table of `list agents`."""
    header = ("Agent ID", "Host", "Port", "Status", "Cluster", "Allocation")
    rows = [
        (
            agent.name,
            agent.host,
            str(agent.port),
            agent.status.value.capitalize(),
            agent.cluster or "-",
            agent.allocation or "-",
        )
        for agent in agents
    ]
    return format_table(header, rows)


def agent_properties(agent: Agent) -> str:
    """Return the tables of `get agent`: the IPU-Machine, and its IPUs."""
    machine = format_properties(
        emulated_hardware.agent_properties(agent), widths=(20, 40)
    )
    return machine + format_table(
        emulated_hardware.IPU_HEADER, emulated_hardware.ipu_rows()
    )


def agent_value(agent: Agent) -> dict[str, Any]:
    """Return an agent for JSON."""
    return {
        "id": agent.name,
        "spec": {"host": agent.host, "port": agent.port},
        "status": agent.status.value,
        "cluster": agent.cluster,
        "allocation": agent.allocation,
    }


def discovery_table(agents: Sequence[Agent]) -> str:
    """Return the table of `discover agents`: the emulated IPU-Machines that are up."""
    header = (
        "Host",
        "Port",
        "Network Interface",
        "Time Since Last Seen",
        "Agent Auto-Add ID",
    )
    rows = [
        (agent.host, str(agent.port), "emulated", "0s", agent.name) for agent in agents
    ]
    return format_table(header, rows)


def attribute_table(agents: Sequence[Agent]) -> str:
    """Return the table of `list ipu-attrs`; what repeats is written once."""
    rows = []
    for agent in agents:
        for ipu in range(IPUS_PER_MACHINE):
            attributes = emulated_hardware.ipu_attributes(agent, ipu)
            for number, (name, value) in enumerate(attributes):
                rows.append(
                    (
                        agent.name if ipu == number == 0 else "",
                        str(ipu) if number == 0 else "",
                        name,
                        value,
                    )
                )
    header = ("Agent", "IPU", "Attribute", "Value")
    return format_table(header, rows, widths=(10, 3, 33, 18))


def attribute_value(agent: Agent) -> list[dict[str, Any]]:
    """Return the attributes of the IPUs of an agent for JSON."""
    return [
        {
            "agent": agent.name,
            "ipu": ipu,
            "attributes": dict(emulated_hardware.ipu_attributes(agent, ipu)),
        }
        for ipu in range(IPUS_PER_MACHINE)
    ]


def allocation_table(allocations: Sequence[Allocation]) -> str:
    """Return the table of `list allocations`."""
    rows = [
        (allocation.name, " ".join(allocation.agents)) for allocation in allocations
    ]
    return format_table(("Allocation ID", "Agents"), rows, top_rule=True)


def allocation_properties(allocation: Allocation) -> str:
    """Return the table of `get allocation`."""
    return format_properties(
        [
            ("Allocation ID", allocation.name),
            ("Cluster", allocation.cluster),
            ("Agents", " ".join(allocation.agents)),
            ("Users", " ".join(allocation.users) or "all"),
        ]
    )


def allocation_value(allocation: Allocation) -> dict[str, Any]:
    """Return an allocation for JSON."""
    return {
        "id": allocation.name,
        "spec": {
            "cluster": allocation.cluster,
            "agents": list(allocation.agents),
            "users": list(allocation.users),
        },
    }


def user_table(users: Sequence[User]) -> str:
    """Return the table of `list users`."""
    rows = [_user_cells(user) for user in users]
    return format_table(("User", "Administrator", "Allocations"), rows)


def user_properties(user: User) -> str:
    """Return the table of `get user`."""
    names = ("User ID", "Administrator", "Allocations")
    return format_properties(list(zip(names, _user_cells(user), strict=True)))


def user_value(user: User) -> dict[str, Any]:
    """Return a user for JSON."""
    return {
        "id": user.name,
        "is_admin": user.is_admin,
        "allocations": list(user.allocations),
    }


def _user_cells(user: User) -> tuple[str, ...]:
    return (
        user.name,
        "yes" if user.is_admin else "no",
        " ".join(user.allocations) or "-",
    )


class View(NamedTuple):
    """How things of one kind are shown."""

    value: Callable[[Any], Any]
    table: Callable[[Any], str]
    properties: Callable[[Any], str]


# By the noun of one of them.
VIEWS = {
    "agent": View(agent_value, agent_table, agent_properties),
    "allocation": View(allocation_value, allocation_table, allocation_properties),
    "user": View(user_value, user_table, user_properties),
}
