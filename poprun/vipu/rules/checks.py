"""Check names, hosts, clusters and agents that are to be made. Pure."""

import re
from collections.abc import Sequence

from poprun.errors import HostError
from poprun.host_specs import parse_hosts
from poprun.vipu import model
from poprun.vipu.errors import VipuRuleError

_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


def check_cluster(cluster: model.Cluster) -> None:
    """Check a cluster that is to be made.

    Raises:
        VipuRuleError: No such cluster can be.
    """
    check_name("cluster", cluster.name)
    size = cluster.ild_size
    if not 1 <= cluster.num_ilds <= model.MOST_ILDS:
        raise VipuRuleError(
            f"Cluster {cluster.name} would have {cluster.num_ilds} ILDs, but must have "
            f"from 1 to {model.MOST_ILDS}."
        )
    if not 0 < size <= model.LARGEST_ILD or size % model.IPUS_PER_MACHINE:
        raise VipuRuleError(
            f"An ILD of cluster {cluster.name} would have {size} IPUs, but must have "
            f"{model.IPUS_PER_MACHINE} for each of its 1 to "
            f"{model.LARGEST_ILD // model.IPUS_PER_MACHINE} IPU-Machines."
        )
    if cluster.num_ilds > 1 and not model.is_power_of_two(size):
        raise VipuRuleError(
            f"Cluster {cluster.name} would have ILDs of {size} IPUs, but with several "
            "ILDs each must have a power of two. Change the number of agents."
        )
    if cluster.hosts and cluster.size % len(cluster.hosts):
        raise VipuRuleError(
            f"Cluster {cluster.name} would have {len(cluster.hosts)} hosts for its "
            f"{cluster.size} IPUs, but each host has the same number of them. Change "
            "the number of hosts."
        )


def check_agent(agent: model.Agent) -> None:
    """Check an agent that is to be made.

    Raises:
        VipuRuleError: No such agent can be.
    """
    check_name("agent", agent.name)
    check_host(agent.host)
    if not 1 <= agent.port <= 65535:
        raise VipuRuleError(
            f"The port of agent {agent.name} is {agent.port}, but must be from 1 to "
            "65535."
        )


def check_name(noun: str, name: str) -> None:
    """Check the name of a cluster, partition and so on.

    Raises:
        VipuRuleError: It is too long, or has characters that no name has.
    """
    if not re.fullmatch(_NAME, name):
        text = name if len(name) <= 64 else f"{name[:61]}..."
        raise VipuRuleError(
            f"{text!r} is not a valid name for a {noun}: use up to 64 letters, digits, "
            "dots, dashes and underscores, and begin with a letter or a digit."
        )


def check_host(host: str) -> None:
    """Check the name or address of a host, as far as it is shown and stored.

    Raises:
        VipuRuleError: It is empty, too long or not printable.
    """
    if not 0 < len(host) <= 253 or not re.fullmatch(r"[\w.:%\[\]-]+", host, re.ASCII):
        raise VipuRuleError(f"{host[:64]!r} is not the name or address of a host.")


def read_hosts(texts: Sequence[str]) -> tuple[str, ...]:
    """Return each of the hosts in lists as poprun's --host takes them.

    Raises:
        VipuRuleError: They are no hosts, or one is listed twice.
    """
    try:
        return tuple(map(str, parse_hosts(",".join(texts)))) if texts else ()
    except HostError as error:
        raise VipuRuleError(str(error)) from None


def check_distinct(noun: str, names: Sequence[str]) -> None:
    """Check that no name is given twice.

    Raises:
        VipuRuleError: One is.
    """
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise VipuRuleError(f"{noun} {twice} is given twice. Give it once.")
