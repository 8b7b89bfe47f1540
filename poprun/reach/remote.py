"""Asks the agents on other hosts, and opens the connections to them."""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from poprun.errors import HostError, ProgramNotFoundError
from poprun.host_specs import HostSpec, is_local
from poprun.log import Log
from poprun.mpirun.find import site_packages
from poprun.mpirun.values import Mpi
from poprun.options.settings import Settings
from poprun.plan.host_facts import HostFacts
from poprun.plan.slurm import NODE_NAME, read_job
from poprun.reach import facts
from poprun.reach.addresses import own_address_towards, own_addresses
from poprun.reach.agent_connection import AgentConnection
from poprun.reach.agents import open_agents
from poprun.reach.connector import Connector
from poprun.reach.copies import Copy, copy_to_hosts, environment_copies, folder_copy
from poprun.reach.hosts import MARK, LocalPreflight, Preflight
from poprun.reach.other_command import find_command
from poprun.reach.out_of_memory import MemoryCounters
from poprun.reach.srun import find_srun
from poprun.wire import protocol
from poprun.wire.machine import machine_id


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAccess:
    """The connectors to other hosts, and the preparations before the agents start."""

    # The command of --ssh.
    ssh: str
    # Sends a message to the guard.
    tell: Callable[[bytes], None]
    log: Log
    # Says what poprun does; "" for nothing.
    show_phase: Callable[[str], None]
    distributes_key: bool = False
    synchronises_python: bool = False
    # The absolute path of the folder of --sync; "" for none.
    synchronised_folder: str = ""


def open_hosts_of_settings(
    settings: Settings,
    environ: Mapping[str, str],
    log: Log,
    show_phase: Callable[[str], None],
    tell: Callable[[bytes], None],
    hosts: Sequence[HostSpec],
    *,
    again: bool = False,
) -> Sequence[Preflight]:
    """Return what looks things up on each host; this one needs no ssh.

    Args:
        show_phase: Says what poprun does; "" for nothing.
        tell: Sends a message to the guard.
        again: Whether an attempt has run before this one: its instances may have
            written to the folder of --sync, which is not copied then.
    """
    names = [host.name for host in hosts]
    is_named = settings.is_given("host") or settings.is_given("hostfile")
    if not is_named and names == [environ.get(NODE_NAME) or "localhost"]:
        return [LocalPreflight()]
    folder = None if again else settings["sync"]
    mark = os.urandom(16).hex()
    # If poprun is killed meanwhile, the guard ends the processes with the mark.
    tell(protocol.pack(protocol.MARK, f"{MARK}={mark}".encode()))
    access = HostAccess(
        ssh=settings["ssh"],
        tell=tell,
        log=log,
        show_phase=show_phase,
        distributes_key=settings["distribute-ssh-key"],
        synchronises_python=settings["synchronise-python-venv"],
        synchronised_folder="" if folder is None else os.path.abspath(folder),
    )
    opened = open_hosts(hosts, {**environ, MARK: mark}, access)
    show_phase("checking the hosts")
    return opened


class RemotePreflight:
    """A host at the end of a connection.

    Args:
        environ: poprun's environment.
    """

    def __init__(self, connection: AgentConnection, environ: Mapping[str, str]) -> None:
        self.connection = connection
        self._environ = environ

    def facts(self) -> HostFacts:
        hello = self.connection.hello
        assert hello is not None
        value = self.connection.ask(protocol.DESCRIBE_HOST, os.getcwd())
        connector = self.connection.connector
        environ = connector.host_environment(hello.environ, self._environ)
        # srun passes its environment on.
        environ.pop(MARK, None)
        return facts.unpack(value, environ)

    def check_mpi(self, mpi: Mpi) -> None:
        if mpi.has_mpi:
            # The agent runs without site-packages, and does not know them.
            question = [mpi.path, mpi.title, site_packages()]
            self.connection.ask(protocol.CHECK_MPI, question)

    def find_program(
        self, argv: Sequence[str], search_path: str | None, cwd: str
    ) -> str:
        question = [list(argv), search_path, cwd]
        try:
            path: str = self.connection.ask(protocol.FIND_PROGRAM, question)
        except ProgramNotFoundError as error:
            error.args = (
                f"{error} Copy it there, put it in a directory that the hosts "
                "share, or let --sync DIR copy its folder.",
            )
            raise
        return path

    def read_memory_counters(self) -> MemoryCounters:
        if self.connection.memory is not None:
            # The agent has ended with the job.
            kills, limit, host_kills = self.connection.memory
        else:
            answer = self.connection.ask(protocol.READ_MEMORY)
            kills, limit, host_kills = answer
        return MemoryCounters(kills=kills or 0, limit=limit, host_kills=host_kills)

    def process(self) -> tuple[int, int]:
        return self.connection.pid, self.connection.start

    def hang_up(self) -> None:
        self.connection.hang_up()

    def close(self) -> None:
        self.connection.end()


def open_hosts(
    hosts: Sequence[HostSpec],
    environ: Mapping[str, str],
    access: HostAccess,
) -> list[Preflight]:
    """Return what looks things up on each host: an agent on all but this one.

    Args:
        access: How to reach hosts, and what to do there first.

    Raises:
        PoprunError: A host cannot be reached, or is named twice.
    """
    access.show_phase("resolving the names of the hosts")
    slurm_name = environ.get(NODE_NAME)
    others = [h for h in _on_other_machines(hosts) if h.name != slurm_name]
    connections: dict[HostSpec, AgentConnection] = {}
    if others:
        connectors = _connectors(others, environ, access.ssh)
        _make_ready(others, connectors, environ, access)
        opened = open_agents(others, connectors, environ, access.show_phase)
        connections = dict(zip(others, opened, strict=True))
    towards = next((_address(c) for c in connections.values() if _address(c)), "")
    local = LocalPreflight(own_address_towards(towards) if towards else "")
    try:
        return [
            local if connection is None else RemotePreflight(connection, environ)
            for connection in _remote_connections(hosts, connections)
        ]
    except HostError:
        for connection in connections.values():
            connection.end()
        raise


def _connectors(
    hosts: Sequence[HostSpec], environ: Mapping[str, str], command: str
) -> list[Connector]:
    """Return the connector to each host: srun for the nodes of poprun's Slurm job."""
    try:
        srun = find_srun(read_job(environ), environ)
    except HostError:
        srun = None
    other = cache(lambda: find_command(command, environ))
    return [
        srun if srun is not None and srun.reaches(host) else other() for host in hosts
    ]


def _make_ready(
    hosts: Sequence[HostSpec],
    connectors: Sequence[Connector],
    environ: Mapping[str, str],
    access: HostAccess,
) -> None:
    """Let hosts accept the user's key, and copy what they are to have."""
    copies: dict[str, Callable[[], list[Copy]]] = {}
    if access.synchronises_python:
        copies["virtual environment"] = lambda: environment_copies(environ)
    if access.synchronised_folder:
        copies["folder"] = lambda: [folder_copy(access.synchronised_folder)]
    for connector in dict.fromkeys(connectors):
        group = [h for h, c in zip(hosts, connectors, strict=True) if c == connector]
        if access.distributes_key:
            # ssh may ask for a password.
            access.show_phase("")
            connector.distribute_key(group, environ, access.log)
        for noun, find_copies in copies.items():
            access.show_phase(f"copying the {noun} to the hosts")
            copy_to_hosts(
                find_copies(), group, connector, environ, access.tell, access.log
            )


def _remote_connections(
    hosts: Sequence[HostSpec], connections: dict[HostSpec, AgentConnection]
) -> list[AgentConnection | None]:
    """Return the connection to each host, None for this one.

    Raises:
        HostError: Two names belong to one machine.
    """
    own_machine = machine_id()
    by_machine: dict[str, HostSpec] = {}
    for host in hosts:
        hello = connections[host].hello if host in connections else None
        machine = own_machine if hello is None else hello.machine
        if (other := by_machine.setdefault(machine, host)) is not host:
            raise HostError(
                f"{other} and {host} are the same machine. Name it once; "
                "--num-instances says how many instances to start."
            )
        if hello is None or machine != own_machine:
            continue
        if hello.user != os.geteuid():
            raise HostError(
                f"{host} is this machine, where the job runs as you. Leave the user "
                "out, or start poprun as that user."
            )
        # A name of this host that only the resolver knows.
        connections.pop(host).end()
    return [connections.get(host) for host in hosts]


def _address(connection: AgentConnection) -> str:
    """Return the address of a host in the connection to it, "" if it is not known."""
    assert connection.hello is not None
    return connection.hello.address


def _on_other_machines(hosts: Sequence[HostSpec]) -> list[HostSpec]:
    """Return the hosts that have none of the names of this machine."""
    others = [host for host in hosts if not is_local(host, [os.uname().nodename])]
    # The other names take a while to find: a name server is asked.
    names = own_names() if others else []
    return [host for host in others if not is_local(host, names)]


def own_names() -> list[str]:
    """Return the names and addresses of this machine."""
    return [os.uname().nodename, socket.getfqdn(), *own_addresses()]
