"""What the plan has to know of each host: its CPUs, a free port, the directory."""

import os
import socket
from collections.abc import Callable, Sequence
from typing import NamedTuple

from poprun.plan import machine
from poprun.plan.hosts import HostSpec
from poprun.plan.placement import Machine


class HostFacts(NamedTuple):
    """What the plan has to know of one host."""

    # The CPUs and NUMA nodes that instances may use there.
    machine: Machine
    # A TCP port that no process listens on there.
    free_port: int
    # The directory in which instances run there, unless they have one of their own;
    # "" if it has been deleted.
    cwd: str


Describe = Callable[[Sequence[HostSpec]], Sequence[HostFacts]]


def describe_hosts(hosts: Sequence[HostSpec]) -> list[HostFacts]:
    """Return the facts of each host.

    Other hosts are planned as copies of this one: this version starts nothing there.
    """
    local = HostFacts(
        machine=machine.describe(), free_port=_free_port(), cwd=_current_directory()
    )
    return [local for _ in hosts]


def _free_port() -> int:
    """Return a TCP port of this host that no process listens on."""
    with socket.socket() as sock:
        sock.bind(("", 0))
        return int(sock.getsockname()[1])


def _current_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""
