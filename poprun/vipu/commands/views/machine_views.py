"""Clusters, agents, allocations and users as the commands show them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from poprun.vipu.commands.views import emulated_hardware
from poprun.vipu.commands.views.partition_views import ipu_names, names_by_machine
from poprun.vipu.commands.views.pod_picture import ClusterState, free_text
from poprun.vipu.commands.views.text_tables import (
    Columns,
    format_properties,
    format_table,
    format_value,
    format_values,
)
from poprun.vipu.model import IPUS_PER_MACHINE, Agent, Allocation, User

_CLUSTERS: Columns = {
    "Cluster": "cluster.name",
    "ILDs": "cluster.num_ilds",
    "Size": "cluster.size",
    "Topology": "cluster.topology.name",
    "Cluster Topology": "cluster.gateway_topology.name",
    "Free": "num_free",
}
_CLUSTER: Columns = {
    "Cluster ID": "cluster.name",
    "ILDs": "cluster.num_ilds",
    "IPUs per ILD": "cluster.ild_size",
    "Size": "cluster.size",
    "Free": lambda state: free_text(state.free),
    "Topology": "cluster.topology",
    "Cluster Topology": "cluster.gateway_topology",
    "Made for a job": "cluster.automatic",
    "Agents": lambda state: tuple(agent.name for agent in state.agents),
}
_AGENTS: Columns = {
    "Agent ID": "name",
    "Host": "host",
    "Port": "port",
    "Status": lambda agent: agent.status.capitalize(),
    "Cluster": "cluster",
    "Allocation": "allocation",
}
# Of the emulated IPU-Machines that are up.
DISCOVERED: Columns = {
    "Host": "host",
    "Port": "port",
    "Network Interface": lambda agent: "emulated",
    "Time Since Last Seen": lambda agent: "0s",
    "Agent Auto-Add ID": "name",
}
_ALLOCATIONS: Columns = {"Allocation ID": "name", "Agents": "agents"}
_ALLOCATION: Columns = {
    "Allocation ID": "name",
    "Cluster": "cluster",
    "Agents": "agents",
    "Users": lambda allocation: allocation.users or "all",
}
_USER: Columns = {
    "Administrator": "is_admin",
    "Allocations": lambda user: user.allocations or "-",
}


def _cluster_value(state: ClusterState) -> dict[str, Any]:
    """Return a cluster for JSON, in the form of the original's `--showjson`."""
    cluster, names = state.cluster, names_by_machine(state.agents)
    size = cluster.ild_size
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
        "free": state.num_free,
    }


def _agent_properties(agent: Agent) -> str:
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


def attribute_table(agents: Sequence[Agent]) -> str:
    """Return the table of `list ipu-attrs`; what repeats is written once."""
    rows = []
    for agent in agents:
        for ipu in range(IPUS_PER_MACHINE):
            attributes = emulated_hardware.ipu_attributes(agent, ipu)
            for number, attribute in enumerate(attributes):
                first = agent.name if ipu == number == 0 else ""
                rows.append((first, "" if number else str(ipu), *attribute))
    header = ("Agent", "IPU", "Attribute", "Value")
    return format_table(header, rows, widths=(10, 3, 33, 18))


def attribute_values(agents: Sequence[Agent]) -> list[dict[str, Any]]:
    """Return the attributes of the IPUs of agents for JSON."""
    return [
        {
            "agent": agent.name,
            "ipu": ipu,
            "attributes": dict(emulated_hardware.ipu_attributes(agent, ipu)),
        }
        for agent in agents
        for ipu in range(IPUS_PER_MACHINE)
    ]


def _allocation_value(allocation: Allocation) -> dict[str, Any]:
    return {
        "id": allocation.name,
        "spec": {
            "cluster": allocation.cluster,
            "agents": list(allocation.agents),
            "users": list(allocation.users),
        },
    }


def _user_value(user: User) -> dict[str, Any]:
    return {
        "id": user.name,
        "is_admin": user.is_admin,
        "allocations": list(user.allocations),
    }


class View(NamedTuple):
    """How things of one kind are shown: one as JSON, several and one as a table."""

    value: Callable[[Any], Any]
    table: Callable[[Any], str]
    properties: Callable[[Any], str]


# By the noun of one of them; a cluster is shown with its agents and its free IPUs.
VIEWS = {
    "cluster": View(
        _cluster_value,
        partial(format_values, _CLUSTERS),
        partial(format_value, _CLUSTER),
    ),
    "agent": View(agent_value, partial(format_values, _AGENTS), _agent_properties),
    "allocation": View(
        _allocation_value,
        partial(format_values, _ALLOCATIONS, top_rule=True),
        partial(format_value, _ALLOCATION),
    ),
    "user": View(
        _user_value,
        partial(format_values, {"User": "name", **_USER}),
        partial(format_value, {"User ID": "name", **_USER}),
    ),
}
