"""Looks up facts, programs and memory of the hosts of a job before it starts."""

import os
import resource
from collections.abc import Callable, Mapping, Sequence

from poprun.annotations import Protocol
from poprun.helpers import own_process
from poprun.helpers.tcp_ports import free_port
from poprun.plan.hosts import HostSpec
from poprun.plan.values import HostFacts, Request
from poprun.preflight import machine, out_of_memory, program
from poprun.preflight.out_of_memory import MemoryCounters

# The folder of the sitecustomize that runs in every Python of an instance.
_INTERPRETER = os.path.join(
    os.path.abspath(__file__).rpartition("/preflight/")[0], "interpreter"
)


class Preflight(Protocol):
    """What poprun looks up on one host."""

    def facts(self) -> HostFacts: ...

    def find_program(
        self, argv: Sequence[str], search_path: str | None, cwd: str
    ) -> str:
        """Return the path of the file that an argv names there."""

    def read_memory_counters(self) -> MemoryCounters:
        """Return how many processes the kernel has killed there for want of memory."""


class LocalPreflight:
    """The host that poprun runs on."""

    def facts(self) -> HostFacts:
        return HostFacts(
            machine=machine.describe(),
            free_port=free_port(),
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

    def read_memory_counters(self) -> MemoryCounters:
        return out_of_memory.read_host()


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

    def find_programs(
        self, argv: Sequence[str], request: Request, environ: Mapping[str, str]
    ) -> list[str]:
        """Return the program's file for each instance.

        Each host has files of its own, and each instance may have a PATH of its own.

        Raises:
            PoprunError: As of `program.find_program`.
        """
        files: dict[tuple[HostSpec, str | None, str], str] = {}
        paths = []
        for rank in range(request.topology.num_instances):
            host, cwd = request.host_of(rank), request.cwd_of(rank)
            search_path = request.exports_of(rank).get("PATH", environ.get("PATH"))
            if (key := (host, search_path, cwd)) not in files:
                files[key] = self[host].find_program(argv, search_path, cwd)
            paths.append(files[key])
        return paths

    def read_memory_counters(
        self, hosts: Sequence[HostSpec]
    ) -> dict[HostSpec, MemoryCounters]:
        """Return the counters of each host."""
        return {host: self[host].read_memory_counters() for host in hosts}
