"""Reads the facts of the host that poprun, or an agent, runs on."""

import os
import resource
from collections.abc import Sequence

from poprun.helpers import own_process
from poprun.helpers.tcp_ports import free_ports
from poprun.plan.host_facts import HostFacts
from poprun.reach.own_host.addresses import network_of, own_addresses
from poprun.reach.own_host.cgroups import read_cpu_quota
from poprun.reach.own_host.numa_nodes import read_machine

# The folder of the sitecustomize that runs in every Python of an instance.
_INTERPRETER = os.path.join(
    os.path.abspath(__file__).rpartition("/reach/")[0], "interpreter"
)


def own_facts(address: str = "", directory_places: Sequence[str] = ()) -> HostFacts:
    """Return the facts of this host.

    Args:
        address: Its address for the other hosts of the job.
        directory_places: Where the job's directory can be, on another host than
            poprun's.
    """
    network = ""
    addresses: list[str] = []
    if address:
        network = network_of(address)
        addresses = own_addresses()
    free_port, links_port = free_ports(2)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return HostFacts(
        machine=read_machine(),
        free_port=free_port,
        links_port=links_port,
        cwd=os.getcwd(),
        interpreter=_INTERPRETER,
        page_bytes=resource.getpagesize(),
        stack_limit=resource.getrlimit(resource.RLIMIT_STACK)[0],
        ignored_signals=tuple(own_process.ignored_signals()),
        cpu_quota=read_cpu_quota(),
        open_files=0 if soft == hard else soft,
        address=address,
        network=network,
        addresses=tuple(addresses),
        directory_places=tuple(directory_places),
    )
