"""Looks up facts, programs and memory of the hosts of a job before it starts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from poprun.errors import PoprunError
from poprun.host_specs import HostSpec
from poprun.mpirun.values import Mpi
from poprun.plan.host_facts import HostFacts
from poprun.plan.values import Request
from poprun.reach.connections.agent_connection import AgentConnection
from poprun.reach.own_host import out_of_memory, program
from poprun.reach.own_host.facts import own_facts
from poprun.reach.own_host.out_of_memory import MemoryCounters
from poprun.wire.machine import machine_id

Answer = TypeVar("Answer")

# The arguments of Preflight.find_program.
ProgramLookup = tuple[tuple[str, ...], str | None, str]

# The variable of the processes that reach other hosts, until the job starts.
PREFLIGHT_MARK = "_POPRUN_PREFLIGHT"


class Preflight:
    """The questions that poprun asks about its own host before a job.

    RemotePreflight asks the same about another host.

    Args:
        address: Its address for the other hosts of the job.
    """

    # To the agent on another host.
    connection: AgentConnection | None = None

    def __init__(self, address: str = "") -> None:
        self._address = address

    def facts(self) -> HostFacts:
        return own_facts(self._address)

    def check_mpi(self, mpi: Mpi) -> None:
        """Check that the host has this mpirun, of this MPI; poprun's own has.

        Raises:
            PoprunError: It has none, or another.
        """

    def find_program(
        self, argv: Sequence[str], search_path: str | None, cwd: str
    ) -> str:
        """Return the path of the file that an argv names there."""
        return program.find_program(argv, search_path, cwd)

    def read_memory_counters(self) -> MemoryCounters:
        """Return how many processes of it the kernel killed because memory ran out."""
        return out_of_memory.read_host()


# Returns the preflight of each of some hosts, without those that cannot be used.
OpenHosts = Callable[[Sequence[HostSpec]], Mapping[HostSpec, Preflight]]
_LOCAL = Preflight()


class Preflights:
    """The hosts of one job. Each is connected once for each attempt.

    Args:
        open_hosts: Returns the preflights; None if all hosts stand for this one.
    """

    def __init__(self, open_hosts: OpenHosts | None = None) -> None:
        self._open_hosts = open_hosts or (lambda hosts: dict.fromkeys(hosts, _LOCAL))
        self._hosts: dict[HostSpec, Preflight] = {}

    def __getitem__(self, host: HostSpec) -> Preflight:
        return self._hosts[host]

    def describe(self, hosts: Sequence[HostSpec]) -> list[HostFacts]:
        """Return the facts of each host.

        Raises:
            PoprunError: One cannot be reached, or cannot be used.
        """
        self._open(hosts)
        preflights = list(dict.fromkeys(self[host] for host in hosts))
        answers = _ask_all([preflight.facts for preflight in preflights])
        facts = dict(zip(preflights, answers, strict=True))
        return [facts[self[host]] for host in hosts]

    def _open(self, hosts: Sequence[HostSpec]) -> None:
        new = [host for host in dict.fromkeys(hosts) if host not in self._hosts]
        if new:
            self._hosts |= self._open_hosts(new)

    def check_mpi(self, mpi: Mpi) -> None:
        """Check that all hosts have the mpirun of the job.

        Raises:
            PoprunError: One has none, or another.
        """
        _ask_all([partial(host.check_mpi, mpi) for host in self._hosts.values()])

    def find_programs(self, request: Request, environ: Mapping[str, str]) -> list[str]:
        """Return the program's file for each instance.

        Each host has other files, and each instance may have another PATH.

        Raises:
            PoprunError: See `program.find_program`.
        """
        places: list[tuple[HostSpec, ProgramLookup]] = []
        for each in request.assignments:
            search_path = each.exports.get("PATH", environ.get("PATH"))
            look = tuple(each.program.argv), search_path, each.cwd
            places.append((each.host, look))
        by_host: dict[HostSpec, dict[ProgramLookup, str]] = {}
        for host, look in places:
            by_host.setdefault(host, {})[look] = ""
        # First this host: a mistake in the program's name is said once, not by each.
        for is_here in (True, False):
            hosts = [h for h in by_host if (self[h].connection is None) is is_here]
            # A host is asked one question at a time: its answers come in that order.
            questions = [
                partial(_find_all, self[host], by_host[host]) for host in hosts
            ]
            by_host |= zip(hosts, _ask_all(questions), strict=True)
        return [by_host[host][look] for host, look in places]

    def machines(self, hosts: Sequence[HostSpec]) -> list[str]:
        """Return the ids of the machines that some hosts are."""
        connections = [self[host].connection for host in hosts]
        return [machine_id() if c is None else c.hello.machine for c in connections]

    def connections(self) -> dict[int, int]:
        """Return the processes that connect poprun to hosts: pid -> start time."""
        connections = self._connections(self._hosts.values())
        return {c.pid: c.start for c in connections}

    def _connections(self, preflights: Iterable[Preflight]) -> list[AgentConnection]:
        connections = (preflight.connection for preflight in preflights)
        return [connection for connection in connections if connection is not None]

    def reopen(self, hosts: Sequence[HostSpec], open_hosts: OpenHosts) -> None:
        """Connect to the hosts again: the connections of an attempt end with it.

        Raises:
            PoprunError: A host cannot be reached, or cannot be used.
        """
        self.close()
        self._hosts = {}
        self._open_hosts = open_hosts
        self._open(hosts)

    def keep(self, hosts: Sequence[HostSpec]) -> None:
        """End the connections to all hosts but these."""
        others = {h: p for h, p in self._hosts.items() if h not in hosts}
        self._close(others.values())
        for host in others:
            del self._hosts[host]

    def put(self, host: HostSpec, preflight: Preflight) -> None:
        """Take in a host that has come; end an earlier connection to it."""
        for other in [h for h in self._hosts if h.name == host.name]:
            self._close([self._hosts.pop(other)])
        self._hosts[host] = preflight

    def close(self) -> None:
        """End the connections to other hosts."""
        self._close(self._hosts.values())

    def _close(self, preflights: Iterable[Preflight]) -> None:
        connections = self._connections(preflights)
        for connection in connections:
            connection.hang_up()
        for connection in connections:
            connection.end()

    def read_memory_counters(
        self, hosts: Sequence[HostSpec]
    ) -> dict[HostSpec, MemoryCounters]:
        """Return the counters of each host."""
        answers = _ask_all([self[host].read_memory_counters for host in hosts])
        return dict(zip(hosts, answers, strict=True))


def _find_all(
    host: Preflight, looks: Iterable[ProgramLookup]
) -> dict[ProgramLookup, str]:
    return {look: host.find_program(*look) for look in looks}


def _ask_all(questions: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """Return the answers to questions to several hosts, which are asked at once.

    Raises:
        PoprunError: The error of the first question that failed, with the sentences
            of all errors, one in each line.
    """
    if len(questions) <= 1:
        return [question() for question in questions]
    pool = ThreadPoolExecutor(len(questions))
    futures = [pool.submit(question) for question in questions]
    # An interruption of poprun does not wait for them.
    pool.shutdown(wait=False)
    failures = [error for f in futures if (error := f.exception()) is not None]
    if failures:
        first = failures[0]
        if isinstance(first, PoprunError):
            first.args = ("\n".join(dict.fromkeys(map(str, failures))),)
        raise first
    return [future.result() for future in futures]
