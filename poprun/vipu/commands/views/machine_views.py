"""Clusters, agents, allocations and users as the commands show them."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from poprun.vipu.commands.views import emulated_hardware
from poprun.vipu.commands.views.partition_views import ipu_names, names_by_machine
from poprun.vipu.commands.views.pod_picture import ClusterState, free_text
from poprun.vipu.commands.views.text_tables import (
    Columns,
    format_table,
    format_value,
    format_values,
    properties_of,
)
from poprun.vipu.model import Agent


class View(NamedTuple):
    """How values of one kind are shown: for JSON, several and one of them."""

    json: Mapping[str, Any]
    # Of a table with a row for each.
    columns: Columns | Callable[[Sequence[Any]], str]
    # Of a table with a row for each attribute; of what is only listed none.
    properties: Columns | Callable[[Any], str] = MappingProxyType({})
    top_rule: bool = False

    def table(self, values: Sequence[Any]) -> str:
        """Return a table of several."""
        if callable(self.columns):
            return self.columns(values)
        return format_values(self.columns, values, top_rule=self.top_rule)

    def text(self, value: Any) -> str:
        """Return all that is shown of one."""
        if callable(self.properties):
            return self.properties(value)
        return format_value(self.properties, value)


def _ild_values(state: ClusterState) -> list[dict[str, Any]]:
    cluster, names = state.cluster, names_by_machine(state.agents)
    size = cluster.ild_size
    return [
        {"ipus": ipu_names(range(ild * size, (ild + 1) * size), names)}
        for ild in range(cluster.num_ilds)
    ]


def _agent_text(agent: Agent) -> str:
    """Return the tables of `get agent`: the IPU-Machine, and its IPUs."""
    machine = format_value(emulated_hardware.MACHINE, agent, widths=(20, 40))
    ipus = emulated_hardware.ipus_of(agent)
    return machine + format_values(emulated_hardware.IPUS, ipus)


def _attribute_table(ipus: Sequence[emulated_hardware.EmulatedIpu]) -> str:
    """Return the table of `list ipu-attrs`; what repeats is written once."""
    rows = []
    for ipu in ipus:
        attributes = properties_of(emulated_hardware.ATTRIBUTES, ipu)
        for number, attribute in enumerate(attributes):
            agent = ipu.agent.name if ipu.number == number == 0 else ""
            rows.append((agent, "" if number else str(ipu.number), *attribute))
    header = ("Agent", "IPU", "Attribute", "Value")
    return format_table(header, rows, widths=(10, 3, 33, 18))


_AGENT_JSON = {
    "id": "name",
    "spec": {"host": "host", "port": "port"},
    "status": "status",
    "cluster": "cluster",
    "allocation": "allocation",
}
_USER: Columns = {
    "Administrator": "is_admin",
    "Allocations": lambda user: user.allocations or "-",
}

# By the noun of one of them. JSON has the form of the original's `--showjson`.
VIEWS = {
    # With its agents and its free IPUs: a ClusterState.
    "cluster": View(
        {
            "id": "cluster.name",
            "spec": {
                "topology": "cluster.topology",
                "cluster_topology": "cluster.gateway_topology",
                "ipu_link_domains": _ild_values,
                "hosts": "cluster.hosts",
            },
            "automatic": "cluster.automatic",
            "free": "num_free",
        },
        {
            "Cluster": "cluster.name",
            "ILDs": "cluster.num_ilds",
            "Size": "cluster.size",
            "Topology": "cluster.topology.name",
            "Cluster Topology": "cluster.gateway_topology.name",
            "Free": "num_free",
        },
        {
            "Cluster ID": "cluster.name",
            "ILDs": "cluster.num_ilds",
            "IPUs per ILD": "cluster.ild_size",
            "Size": "cluster.size",
            "Free": free_text,
            "Topology": "cluster.topology",
            "Cluster Topology": "cluster.gateway_topology",
            "Made for a job": "cluster.automatic",
            "Agents": lambda state: tuple(agent.name for agent in state.agents),
            "Hosts": lambda state: state.cluster.hosts or "-",
        },
    ),
    "agent": View(
        _AGENT_JSON,
        {
            "Agent ID": "name",
            "Host": "host",
            "Port": "port",
            "Status": lambda agent: agent.status.capitalize(),
            "Cluster": "cluster",
            "Allocation": "allocation",
        },
        _agent_text,
    ),
    # An agent that `discover agents` lists.
    "discovered agent": View(
        _AGENT_JSON,
        {
            "Host": "host",
            "Port": "port",
            "Network Interface": lambda _: "emulated",
            "Time Since Last Seen": lambda _: "0s",
            "Agent Auto-Add ID": "name",
        },
    ),
    "ipu": View(
        {
            "agent": "agent.name",
            "ipu": "number",
            "attributes": emulated_hardware.ATTRIBUTES,
        },
        _attribute_table,
    ),
    "allocation": View(
        {
            "id": "name",
            "spec": {"cluster": "cluster", "agents": "agents", "users": "users"},
        },
        {"Allocation ID": "name", "Agents": "agents"},
        {
            "Allocation ID": "name",
            "Cluster": "cluster",
            "Agents": "agents",
            "Users": lambda allocation: allocation.users or "all",
        },
        top_rule=True,
    ),
    "user": View(
        {"id": "name", "is_admin": "is_admin", "allocations": "allocations"},
        {"User": "name", **_USER},
        {"User ID": "name", **_USER},
    ),
}
