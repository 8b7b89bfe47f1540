"""Asks the agents on other hosts, and opens the connections to them."""

import os
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Self

from poprun.errors import (
    HostError,
    HostUnreachableError,
    PoprunError,
    ProgramNotFoundError,
)
from poprun.helpers import own_process
from poprun.host_specs import HostSpec, is_local
from poprun.log import Log
from poprun.mpirun.find import site_packages
from poprun.mpirun.values import Mpi
from poprun.options.settings import Settings
from poprun.plan.elastic import DISCOVERY
from poprun.plan.host_facts import HostFacts
from poprun.plan.slurm import NODE_NAME, read_job
from poprun.reach.connections.agent_connection import AgentConnection
from poprun.reach.connections.agents import ANSWER_LIMIT_S, AgentStart, open_agents
from poprun.reach.connections.connector import Connector
from poprun.reach.connections.other_command import find_command
from poprun.reach.connections.remote_commands import run_all
from poprun.reach.connections.srun import find_srun
from poprun.reach.copies import Copy, copy_to_hosts, environment_copies, folder_copy
from poprun.reach.discovery import are_named, name_hosts
from poprun.reach.hosts import PREFLIGHT_MARK, Preflight
from poprun.reach.own_host.addresses import own_address_towards, own_addresses
from poprun.reach.own_host.out_of_memory import MemoryCounters
from poprun.reach.own_host.resource_limits import allow_connections
from poprun.wire import protocol
from poprun.wire.field_types import FilePath
from poprun.wire.machine import machine_id


class RemotePreflight(Preflight):
    """A host at the end of a connection.

    Args:
        environ: poprun's environment.
    """

    connection: AgentConnection

    def __init__(self, connection: AgentConnection, environ: Mapping[str, str]) -> None:
        self.connection = connection
        self._environ = environ

    def facts(self) -> HostFacts:
        return self.with_login(
            self.connection.ask(protocol.DESCRIBE_HOST, os.getcwd(), HostFacts)
        )

    def with_login(self, facts: HostFacts) -> HostFacts:
        """Return the facts of the agent with the environment of a login there."""
        connector = self.connection.connector
        environ = connector.host_environment(
            self.connection.hello.environ, self._environ
        )
        # srun passes its environment on.
        environ.pop(PREFLIGHT_MARK, None)
        # nohup applies to poprun's host only: ssh does not pass it on.
        ignored = tuple(own_process.ignored_signals())
        return replace(facts, environ=environ, ignored_signals=ignored)

    def check_mpi(self, mpi: Mpi) -> None:
        for kind, value in mpi_checks(mpi):
            self.connection.ask(kind, value)

    def find_program(
        self, argv: Sequence[str], search_path: str | None, cwd: str
    ) -> str:
        question = [list(argv), search_path, cwd]
        try:
            path: str = self.connection.ask(protocol.FIND_PROGRAM, question, FilePath)
        except ProgramNotFoundError as error:
            error.args = (
                f"{error} Copy it there, put it in a directory that the hosts "
                "share, or let --sync DIR copy its folder.",
            )
            raise
        return path

    def read_memory_counters(self) -> MemoryCounters:
        # The agent ends with the job.
        if (counters := self.connection.memory) is None:
            counters = self.connection.ask(
                protocol.READ_MEMORY, answer_type=MemoryCounters
            )
        return counters


def mpi_checks(mpi: Mpi) -> list[tuple[int, Any]]:
    """Return the messages that let an agent check the mpirun of its host."""
    # The agent runs without site-packages, and does not know them.
    value = [mpi.path, mpi.title, site_packages()]
    return [(protocol.CHECK_MPI, value)] if mpi.has_mpi else []


def _tell_nothing(message: bytes) -> None:
    """Take the place of a message to a guard where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOpener:
    """Connects poprun to the hosts of a job."""

    settings: Settings | Mapping[str, Any]
    # poprun's environment.
    environ: Mapping[str, str]
    log: Log
    # Says what poprun does; "" for nothing.
    show_phase: Callable[[str], None]
    # Sends a message to the guard.
    tell: Callable[[bytes], None] = _tell_nothing
    # The hosts that have the folder of --sync from an attempt before. Its instances may
    # have written to it, so it is not copied again.
    synced: Collection[str] = ()
    # Gets a sentence for each host that cannot be used. The others are opened. If it is
    # None, such a host is an error.
    failures: dict[HostSpec, str] | None = None

    def open(self, hosts: Sequence[HostSpec]) -> dict[HostSpec, Preflight]:
        """Return the preflight of each host: by an agent on all but this one.

        Raises:
            PoprunError: A host cannot be reached, or is named twice.
        """
        opener = self
        connections: dict[HostSpec, AgentConnection] = {}
        if others := self._on_other_machines(hosts):
            allow_connections(len(others))
            opener = self._marked()
            connections = opener._connect(others)
            hosts = [h for h in hosts if h in connections or h not in others]
        addresses = (c.hello.address for c in connections.values())
        towards = next(filter(None, addresses), "")
        local = Preflight(own_address_towards(towards) if towards else "")
        try:
            _keep_other_machines(hosts, connections, self.failures)
        except HostError:
            for connection in connections.values():
                connection.end()
            raise
        return {
            host: RemotePreflight(connections[host], opener.environ)
            if host in connections
            else local
            for host in hosts
            if host not in (self.failures or ())
        }

    def agent_start(self, host: HostSpec) -> AgentStart:
        """Return the start of an agent on a host, which has not begun."""
        [connector] = self._connectors([host]).values()
        return AgentStart(host, connector, self.environ)

    def name_hosts(self) -> Sequence[HostSpec] | None:
        """Return the hosts that the options name; None if they name none."""
        environ = self.environ
        if self.settings[DISCOVERY] is not None or not are_named(self.settings):
            self.show_phase("discovering the hosts")
            environ = self._marked().environ
        return name_hosts(self.settings, environ)

    def probe(
        self,
        hosts: Sequence[HostSpec],
        checks: Sequence[tuple[int, Any]],
        machines: Collection[str],
        synced: Collection[str] | None = None,
    ) -> dict[HostSpec, str]:
        """Return a sentence for each host that a job cannot use besides others.

        Args:
            checks: Messages that its agent must not refuse, each with its value.
            machines: See SearchQuestion.
            synced: See SearchQuestion.
        """
        others = self._on_other_machines(hosts)
        connectors = self._connectors(others)
        failures: dict[HostSpec, str] = {}
        if synced is not None:
            replace(self, synced=synced, failures=failures)._make_ready(connectors)
            connectors = {h: c for h, c in connectors.items() if h not in failures}
        elif self.settings["synchronise-python-venv"]:
            # The agent's files are copied before the next attempt.
            return self._probe_logins(connectors)
        connections = open_agents(connectors, self.environ, failures=failures)
        failures |= _check_agents(connections, checks, machines)
        if machine_id() in machines:
            failures |= {h: _other_name(h, True) for h in hosts if h not in others}
        return failures

    def _probe_logins(
        self, connectors: Mapping[HostSpec, Connector]
    ) -> dict[HostSpec, str]:
        """Return a sentence for each host on which no program can be run."""
        failures: dict[HostSpec, str] = {}
        for host, connector in connectors.items():
            argv = connector.argv(host, ["true"])
            environ = connector.environment(self.environ)
            [ran] = run_all([argv], environ, ANSWER_LIMIT_S)
            if ran.exit_code != 0:
                failures[host] = connector.explain(host, ran)
        return failures

    def _marked(self) -> Self:
        """Return this opener with a mark by which the guard ends its processes."""
        mark = os.urandom(16).hex()
        self.tell(protocol.pack(protocol.MARK, f"{PREFLIGHT_MARK}={mark}".encode()))
        return replace(self, environ={**self.environ, PREFLIGHT_MARK: mark})

    def _on_other_machines(self, hosts: Sequence[HostSpec]) -> list[HostSpec]:
        """Return the hosts that have none of the names of this machine."""
        slurm_name = self.environ.get(NODE_NAME)
        others = [
            host
            for host in hosts
            if host.name != slurm_name and not is_local(host, [os.uname().nodename])
        ]
        if others:
            self.show_phase("resolving the names of the hosts")
            # They take a while to find: a name server is asked.
            names = own_names()
            others = [host for host in others if not is_local(host, names)]
        return others

    def _connect(self, hosts: Sequence[HostSpec]) -> dict[HostSpec, AgentConnection]:
        """Return connections to other hosts, with their keys and copies in place."""
        connectors, failures = self._connectors(hosts), self.failures
        self._make_ready(connectors)
        connectors = {h: c for h, c in connectors.items() if h not in (failures or ())}
        opened = open_agents(connectors, self.environ, self.show_phase, failures)
        self.show_phase("checking the hosts")
        return opened

    def _connectors(self, hosts: Sequence[HostSpec]) -> dict[HostSpec, Connector]:
        """Return the connector to each host: srun for the nodes of the Slurm job."""
        environ = self.environ
        try:
            job = read_job(environ)
        except HostError:
            job = None
        if job is not None and not are_named(self.settings):
            # Slurm may have given some of them to the job after its start.
            job = replace(job, nodes=tuple(hosts))
        srun = find_srun(job, environ)
        other = cache(lambda: find_command(self.settings["ssh"], environ))
        return {
            host: srun if srun is not None and srun.reaches(host) else other()
            for host in hosts
        }

    def _make_ready(self, connectors: Mapping[HostSpec, Connector]) -> None:
        """Let hosts accept the user's key, and copy what they are to have."""
        environ, failures = self.environ, self.failures
        for connector in dict.fromkeys(connectors.values()):
            group = [h for h, c in connectors.items() if c == connector]
            if self.settings["distribute-ssh-key"]:
                # ssh may ask for a password.
                self.show_phase("")
                self._distribute_key(connector, group)
            for copy in self._copies():
                self.show_phase(f"copying the {copy.noun} to the hosts")
                has_it = self.synced if copy.option == "--sync" else ()
                to_hosts = [
                    host
                    for host in group
                    if host.name not in has_it and host not in (failures or ())
                ]
                copy_to_hosts(
                    copy, to_hosts, connector, environ, self.tell, self.log, failures
                )

    def _copies(self) -> list[Copy]:
        copies: list[Copy] = []
        if self.settings["synchronise-python-venv"]:
            copies += environment_copies(self.environ)
        if self.settings["sync"] is not None:
            copies.append(folder_copy(os.path.abspath(self.settings["sync"])))
        return copies

    def _distribute_key(self, connector: Connector, hosts: Sequence[HostSpec]) -> None:
        if self.failures is None:
            connector.distribute_key(hosts, self.environ, self.log)
            return
        for host in hosts:
            try:
                connector.distribute_key([host], self.environ, self.log)
            except HostUnreachableError as error:
                self.failures[host] = str(error)


def _check_agents(
    connections: Mapping[HostSpec, AgentConnection],
    checks: Sequence[tuple[int, Any]],
    machines: Collection[str],
) -> dict[HostSpec, str]:
    """End connections, and return a sentence for each host that a job cannot use.

    Args:
        checks, machines: See HostOpener.probe.
    """
    failures: dict[HostSpec, str] = {}
    used = {*machines}
    for host, connection in connections.items():
        machine = connection.hello.machine
        try:
            if machine in used:
                failures[host] = _other_name(host, machine == machine_id())
            else:
                for kind, value in checks:
                    connection.ask(kind, value)
        except PoprunError as error:
            failures[host] = str(error)
        used.add(machine)
        connection.end()
    return failures


def _keep_other_machines(
    hosts: Sequence[HostSpec],
    connections: dict[HostSpec, AgentConnection],
    failures: dict[HostSpec, str] | None,
) -> None:
    """Remove a connection to this machine, under a name that only the resolver knows.

    Args:
        failures: See HostOpener.

    Raises:
        HostError: Two names belong to one machine, or one to another user here.
    """
    own_machine = machine_id() if connections else ""
    by_machine: dict[str, HostSpec] = {}
    for host in hosts:
        hello = connections[host].hello if host in connections else None
        machine = own_machine if hello is None else hello.machine
        is_own, why = machine == own_machine, ""
        if hello is not None and is_own and hello.user != os.geteuid():
            why = (
                f"{host} is this machine, where the job runs as you. Leave the user "
                "out, or start poprun as that user."
            )
        elif (other := by_machine.setdefault(machine, host)) is not host:
            why = (
                f"{other} and {host} are the same machine. Name it once; "
                "--num-instances says how many instances to start."
            )
            if failures is not None:
                why = _other_name(host, is_own)
        if why:
            if failures is None:
                raise HostError(why)
            failures[host] = why
        if (why or is_own) and host in connections:
            connections.pop(host).end()


def _other_name(host: HostSpec, is_own: bool) -> str:
    """Return why a job cannot use a host that is a machine under another name."""
    machine = "poprun's own machine" if is_own else "the machine of another host"
    return f"The host {host.name} cannot join the job: it is {machine}."


def own_names() -> list[str]:
    """Return the names and addresses of this machine."""
    return [os.uname().nodename, socket.getfqdn(), *own_addresses()]
