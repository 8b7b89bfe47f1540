"""Starts an agent on each other host of a job, all at once.

The connections stay: they are the agents' until the job ends.
"""

import os
import random
import select
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf

from poprun import __version__
from poprun.helpers import processes
from poprun.helpers.load import timeout_factor
from poprun.host_specs import HostSpec
from poprun.reach.connections.agent_connection import AgentConnection, OtherVersionError
from poprun.reach.connections.connector import CommandEnd, Connector, take_failures
from poprun.wire.agent_hello import AgentHello

# How long all hosts together may take to answer, times timeout_factor().
ANSWER_LIMIT_S = 5.5
# How long a command may take to end after its output has ended. It ends at once, but on
# a busy machine; its exit code says why there is no agent.
EXIT_S = 5.0
# How often it is looked for meanwhile, where no signal tells of it.
EXIT_LOOK_S = 0.01
# When to try again what an sshd has dropped: at different times, as others were too.
AGAIN_S = (0.1, 0.4)
AGENT_ENTRY = os.path.join(
    os.path.abspath(__file__).rpartition("/reach/")[0], "host", "agent_entry.py"
)
# More than clocks differ that are set by NTP, even badly.
MOST_CLOCK_DIFFERENCE_S = 60.0


class AgentStart:
    """The start of an agent on one host, which may be tried again."""

    def __init__(
        self, host: HostSpec, connector: Connector, environ: Mapping[str, str]
    ) -> None:
        self.host = host
        self._connector = connector
        self._environ = connector.environment(environ)
        self.connection: AgentConnection | None = None
        # When to try again while there is no connection.
        self.again_at = 0.0
        # When the command must have ended, once its output has: inf before.
        self._exits_by = inf
        # Why it was tried again.
        self._last = ""
        # A sentence, once it has failed.
        self.failure = ""

    @property
    def is_pending(self) -> bool:
        has_answered = self.connection is not None and self.connection.has_answered
        return not self.failure and not has_answered

    @property
    def is_closed(self) -> bool:
        """Whether the command's output has ended: nothing is to be read from it."""
        return self._exits_by < inf

    @property
    def deadline(self) -> float:
        """When `tick` is due."""
        return self.again_at if self.connection is None else self._exits_by

    def begin(self) -> None:
        """Start the command.

        Raises:
            LaunchError: It cannot be started.
        """
        connector = self._connector
        agent = [sys.executable, "-I", "-S", AGENT_ENTRY, connector.name]
        self.connection = AgentConnection(
            self.host.name,
            connector.argv(self.host, agent),
            self._environ,
            connector,
        )

    def receive(self) -> None:
        """Read what the agent or the command has written."""
        assert self.connection is not None
        try:
            if self.connection.receive_hello():
                hello = self.connection.hello
                self.failure = _check(self.host, hello, self._connector)
        except OtherVersionError:
            self.failure = _other_version(self.host, "another version of poprun")
        except ConnectionError:
            self._exits_by = time.monotonic() + EXIT_S

    def tick(self, now: float) -> None:
        """Try again, or explain the end of the command, if it is time.

        Raises:
            LaunchError: It cannot be started again.
        """
        if self.connection is None:
            if now >= self.again_at:
                self.begin()
            return
        if self.is_closed:
            exit_code = self.connection.wait_for_exit(0)
            if exit_code is not None or now >= self._exits_by:
                self._explain(self.connection, exit_code)

    def give_up(self, limit_s: float) -> None:
        """Take in that the host has not answered in so many seconds."""
        if self.connection is not None and self.connection.stderr_text:
            self._explain(self.connection, None)
        else:
            self.failure = self._last or (
                f"The host {self.host.name} cannot be used: it does not answer "
                f"within {limit_s:.0f} s. See: {self._connector.shown(self.host)}"
            )

    def _explain(self, connection: AgentConnection, exit_code: int | None) -> None:
        """Try again, or fail for the reason that the command gives."""
        end = CommandEnd(exit_code=exit_code, errors=connection.stderr_text)
        sentence = self._connector.explain(self.host, end, AGENT_ENTRY)
        if self._connector.is_temporary(end):
            self.end()
            self._last = sentence
            self.again_at = time.monotonic() + random.uniform(*AGAIN_S)
        else:
            self.failure = sentence

    def end(self) -> None:
        if self.connection is not None:
            self.connection.end()
            self.connection = None
        self._exits_by = inf


def open_agents(
    connectors: Mapping[HostSpec, Connector],
    environ: Mapping[str, str],
    show_phase: Callable[[str], None] = lambda phase: None,
    failures: dict[HostSpec, str] | None = None,
) -> dict[HostSpec, AgentConnection]:
    """Start an agent on each host, and return the connections to them.

    Args:
        connectors: The connector to each host.
        failures: Gets a sentence for each host that cannot be used. The others are
            returned. By default such a host is an error.

    Raises:
        HostUnreachableError: A host does not answer, or not as it must; names all.
        LaunchError: A connector cannot be started.
    """
    limit_s = ANSWER_LIMIT_S * timeout_factor()
    starts = [
        AgentStart(host, connector, environ) for host, connector in connectors.items()
    ]
    try:
        _wait_for_all(starts, limit_s, show_phase)
        failed = {start.host: start.failure for start in starts if start.failure}
        take_failures(failed, failures)
    except BaseException:
        for start in starts:
            start.end()
        raise
    connections = {}
    for start in starts:
        if start.failure:
            start.end()
        elif start.connection is not None:
            connections[start.host] = start.connection
    return connections


def _wait_for_all(
    starts: Sequence[AgentStart], limit_s: float, show_phase: Callable[[str], None]
) -> None:
    limit = time.monotonic() + limit_s
    while pending := [start for start in starts if start.is_pending]:
        answered = len(starts) - len(pending)
        show_phase(f"connecting to the hosts, {answered} of {len(starts)} answered")
        now = time.monotonic()
        due = limit
        poll = select.poll()
        by_descriptor: dict[int, AgentStart] = {}
        for start in pending:
            if now < limit or start.is_closed:
                start.tick(now)
            if start.connection is None:
                due = min(due, start.again_at)
                continue
            if start.is_closed:
                due = min(due, now + EXIT_LOOK_S)
                continue
            descriptor = start.connection.fileno()
            by_descriptor[descriptor] = start
            poll.register(descriptor, select.POLLIN)
        # Also after the limit: poprun may have been stopped while hosts answered.
        ready = poll.poll(processes.poll_timeout(max(0.0, due - now)))
        for descriptor, _ in ready:
            by_descriptor[descriptor].receive()
        is_closing = any(start.is_closed for start in pending)
        if now >= limit and not ready and not is_closing:
            break
    for start in pending:
        start.give_up(limit_s)


def _check(host: HostSpec, hello: AgentHello, connector: Connector) -> str:
    """Return why a host with a running agent cannot be used, "" if it can."""
    if hello.version != __version__ or hello.python != _python():
        there = f"poprun {hello.version} in Python {hello.python}"
        return _other_version(host, there)
    difference = hello.clock - time.time()
    if abs(difference) > MOST_CLOCK_DIFFERENCE_S:
        direction = "ahead of" if difference > 0 else "behind"
        return (
            f"The host {host.name} cannot be used: its clock is {abs(difference):.0f} "
            f"s {direction} the clock of this host, so files and certificates would "
            "have wrong times. Set both clocks with NTP; see: "
            f"{connector.shown(host, 'timedatectl')}"
        )
    if hello.temporary_failure:
        return (
            f"The host {host.name} cannot be used: {hello.temporary_failure}; "
            f"see: {connector.shown(host, 'df -h /tmp')}"
        )
    return ""


def _other_version(host: HostSpec, there: str) -> str:
    return (
        f"The host {host.name} cannot be used: it has {there}, but this host has "
        f"poprun {__version__} in Python {_python()}. Install the same there; "
        "--synchronise-python-venv=yes copies a virtual environment."
    )


def _python() -> str:
    return ".".join(map(str, sys.version_info[:3]))
