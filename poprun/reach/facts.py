"""HostFacts as JSON, in the answer of an agent."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from poprun.helpers import own_process
from poprun.plan.host_facts import HostFacts, Machine, Node


def pack(facts: HostFacts) -> dict[str, Any]:
    """Return the facts of a host as a JSON value."""
    nodes = [[node.index, list(node.cpus)] for node in facts.machine.nodes]
    return {**asdict(facts), "machine": nodes}


def unpack(value: Mapping[str, Any], environ: Mapping[str, str]) -> HostFacts:
    """Return the facts of a host.

    Args:
        environ: The environment of the host's agent.

    Raises:
        ValueError, TypeError, KeyError: The value is none of `pack`.
    """
    nodes = [Node(index=index, cpus=tuple(cpus)) for index, cpus in value["machine"]]
    fields = {
        **value,
        "machine": Machine(nodes=tuple(nodes)),
        # nohup applies to poprun's host only: ssh does not pass it on.
        "addresses": tuple(value["addresses"]),
        "directory_places": tuple(value["directory_places"]),
        "ignored_signals": tuple(own_process.ignored_signals()),
        "environ": environ,
    }
    return HostFacts(**fields)
