"""Looks up facts, programs and memory of the hosts of a job before it starts."""

import os
import resource
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from poprun.annotations import Protocol
from poprun.helpers import own_process
from poprun.plan.hosts import HostSpec
from poprun.plan.values import HostFacts
from poprun.preflight import machine, memory, program

# The folder of the sitecustomize that runs in every Python of an instance.
_INTERPRETER = os.path.join(
    os.path.abspath(__file__).rpartition("/preflight/")[0], "interpreter"
)

# Where instances may listen: above the ports of well-known servers.
_FIRST_PORT = 10_000
# Where Linux says which ports it assigns to sockets by itself: the first, the last.
_ASSIGNED_PORTS = "/proc/sys/net/ipv4/ip_local_port_range"
# How many ports to try before one that the kernel assigns is taken.
_MOST_DRAWS = 100


class Preflight(Protocol):
    """What poprun looks up on one host."""

    def facts(self) -> HostFacts: ...

    def find_program(
        self, argv: Sequence[str], search_path: str | None, cwd: str
    ) -> str:
        """Return the path of the file that an argv names there."""

    def read_memory(self) -> memory.Memory:
        """Return how many processes the kernel has killed there for want of memory."""


class LocalPreflight:
    """The host that poprun runs on."""

    def facts(self) -> HostFacts:
        return HostFacts(
            machine=machine.describe(),
            free_port=_free_port(),
            cwd=os.getcwd(),
            interpreter=_INTERPRETER,
            page_bytes=resource.getpagesize(),
            stack_limit=resource.getrlimit(resource.RLIMIT_STACK)[0],
            ignored_signals=tuple(own_process.ignored_signals()),
        )

    def find_program(
        self, argv: Sequence[str], search_path: str | None, cwd: str
    ) -> str:
        return program.find_program(argv, search_path, cwd)

    def read_memory(self) -> memory.Memory:
        return memory.read_machine()


class Preflights:
    """The hosts of one job. Each is described once for each attempt.

    Args:
        open_host: Returns what looks things up on a host. This version starts nothing
            on other machines, so a job on several is planned as if all were this one.
    """

    def __init__(
        self, open_host: Callable[[HostSpec], Preflight] | None = None
    ) -> None:
        self._local = LocalPreflight()
        self._open_host = open_host or (lambda _: self._local)
        self._hosts: dict[HostSpec, Preflight] = {}

    def __getitem__(self, host: HostSpec) -> Preflight:
        if host not in self._hosts:
            self._hosts[host] = self._open_host(host)
        return self._hosts[host]

    def describe(self, hosts: Sequence[HostSpec]) -> list[HostFacts]:
        """Return the facts of each host."""
        facts: dict[Preflight, HostFacts] = {}
        for host in hosts:
            preflight = self[host]
            if preflight not in facts:
                facts[preflight] = preflight.facts()
        return [facts[self[host]] for host in hosts]

    def read_memory(self, hosts: Sequence[HostSpec]) -> dict[HostSpec, memory.Memory]:
        """Return the counters of each host."""
        return {host: self[host].read_memory() for host in hosts}


def _free_port() -> int:
    """Return a TCP port of this host that no process listens on.

    It lies below the ports that the kernel assigns to sockets by itself, as the job may
    listen on it long after: one of those may be assigned to another process by then.
    """
    end = _first_assigned_port()
    for _ in range(_MOST_DRAWS if end > _FIRST_PORT else 0):
        port = _FIRST_PORT + int.from_bytes(os.urandom(4)) % (end - _FIRST_PORT)
        with suppress(OSError):
            return _bind(port)
    return _bind(0)


def _first_assigned_port() -> int:
    """Return the first port that the kernel assigns by itself; 0 if it is unknown."""
    try:
        with open(_ASSIGNED_PORTS) as ports:
            first, _ = ports.read().split()
            return int(first)
    except (OSError, ValueError):
        return 0


def _bind(port: int) -> int:
    """Return the port, or one that the kernel assigns instead of 0, if it is free."""
    with socket.socket() as sock:
        sock.bind(("", port))
        return int(sock.getsockname()[1])
