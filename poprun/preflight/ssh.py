"""Reaches the other hosts of a job over ssh, all at once, and starts an agent on each.

The connections stay: they are the agents' until the job ends.
"""

import os
import select
import shlex
import sys
import time
from collections.abc import Mapping, Sequence

from poprun import __version__
from poprun.agent.connection import AgentConnection
from poprun.errors import HostUnreachableError, OptionError
from poprun.plan.hosts import HostSpec

# How long all hosts together may take to answer.
LIMIT_S = 6.0
OPTIONS = (
    "-T",
    "-x",
    "-a",
    "-o",
    "BatchMode=yes",
    "-o",
    f"ConnectTimeout={LIMIT_S:.0f}",
    # The ports that a user forwards are not for the connections of a job.
    "-o",
    "ClearAllForwardings=yes",
    # A host that is stopped for a while is not lost: see agent/silence.py.
    "-o",
    "ServerAliveInterval=0",
)
ENTRY = os.path.join(
    os.path.abspath(__file__).rpartition("/preflight/")[0], "agent", "entry.py"
)
# More than clocks differ that are set by NTP, even badly.
MOST_CLOCK_DIFFERENCE_S = 60.0

# What ssh writes, in lower case, and what that means.
_EXPLANATIONS = (
    ("host key verification failed", "its host key is not known or has changed"),
    ("permission denied", "it does not accept your ssh key"),
    ("could not resolve hostname", "its name is not known"),
    ("connection refused", "no sshd listens there"),
    ("no route to host", "it cannot be reached"),
    ("network is unreachable", "it cannot be reached"),
    ("connection timed out", "it does not answer"),
)


def open_agents(
    hosts: Sequence[HostSpec], environ: Mapping[str, str], command: str
) -> list[AgentConnection]:
    """Start an agent on each host, and return the connections to them.

    Args:
        command: What --ssh names: a program and its options, as in a shell.

    Raises:
        OptionError: There is no such program.
        HostUnreachableError: A host does not answer, or not as it must; names all.
    """
    if not hosts:
        return []
    words = _ssh_words(command, environ)
    connections = [
        AgentConnection(host.name, agent_argv(words, host), environ) for host in hosts
    ]
    failures = _wait_for_all(connections)
    for connection in connections:
        if connection not in failures and (failure := _check(connection)):
            failures[connection] = failure
    if failures:
        for connection in connections:
            connection.end()
        raise HostUnreachableError("\n".join(failures.values()))
    return connections


def agent_argv(words: Sequence[str], host: HostSpec) -> list[str]:
    """Return the command that runs an agent on a host."""
    target = host.name if host.user is None else f"{host.user}@{host.name}"
    agent = shlex.join([sys.executable, "-I", "-S", ENTRY])
    return [*words, *OPTIONS, "--", target, f"exec {agent}"]


def _ssh_words(command: str, environ: Mapping[str, str]) -> list[str]:
    try:
        first, *others = shlex.split(command)
    except ValueError:
        raise OptionError(
            f"--ssh {command!r} is no command: it has no program, or a quotation mark "
            "without a second one. Write it as in --ssh 'ssh -F my_config'."
        ) from None
    places = environ.get("PATH", os.defpath).split(os.pathsep)
    candidates = [first] if "/" in first else [os.path.join(p, first) for p in places]
    for path in candidates:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return [path, *others]
    raise OptionError(
        f"There is no program {first!r} to reach other hosts with. Install ssh with "
        "'apt install openssh-client', or name another command with --ssh."
    )


def _wait_for_all(
    connections: Sequence[AgentConnection],
) -> dict[AgentConnection, str]:
    """Wait until all have answered; return a sentence about each that does not."""
    limit = time.monotonic() + LIMIT_S
    waiting = {connection.fileno(): connection for connection in connections}
    failures: dict[AgentConnection, str] = {}
    poll = select.poll()
    for descriptor in waiting:
        poll.register(descriptor, select.POLLIN)
    while waiting and (wait := limit - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(wait * 1000):
            connection = waiting[descriptor]
            try:
                if not connection.receive_hello():
                    continue
            except ConnectionError:
                failures[connection] = _explain(connection)
            poll.unregister(descriptor)
            del waiting[descriptor]
    for connection in waiting.values():
        failures[connection] = (
            f"The host {connection.name} does not answer within {LIMIT_S:.0f} s."
            f"{_quote(connection)} Try: ssh {connection.name} true"
        )
    return failures


def _explain(connection: AgentConnection) -> str:
    """Return a sentence about a connection that ssh has ended."""
    text = connection.ssh_text.lower()
    name = connection.name
    for words, meaning in _EXPLANATIONS:
        if words in text:
            return (
                f"The host {name} cannot be used: {meaning}.{_quote(connection)} "
                f"{_way_out(words, name)}"
            )
    if "not found" in text or "no such file" in text:
        return (
            f"The host {name} has no {sys.executable}, the Python that poprun runs in "
            f"here, or no poprun in it.{_quote(connection)} Install both at the same "
            "paths there; --synchronise-python-venv copies a virtual environment."
        )
    return (
        f"The host {name} has ended the connection.{_quote(connection)} Try: ssh "
        f"{name} true"
    )


def _way_out(words: str, name: str) -> str:
    if words == "host key verification failed":
        return f"Run 'ssh {name}' once and accept its key."
    if words == "permission denied":
        return f"Run 'ssh-copy-id {name}', or start the job with --distribute-ssh-key."
    return f"Try: ssh {name} true"


def _check(connection: AgentConnection) -> str:
    """Return why a host whose agent has answered cannot be used, "" if it can."""
    hello, name = connection.hello, connection.name
    assert hello is not None
    python = ".".join(map(str, sys.version_info[:3]))
    if hello.version != __version__ or hello.python != python:
        return (
            f"The host {name} has poprun {hello.version} in Python {hello.python}, but "
            f"this one has poprun {__version__} in Python {python}. Install the same "
            "there; --synchronise-python-venv copies a virtual environment."
        )
    difference = hello.clock - time.time()
    if abs(difference) > MOST_CLOCK_DIFFERENCE_S:
        direction = "ahead of" if difference > 0 else "behind"
        return (
            f"The clock of the host {name} is {abs(difference):.0f} s {direction} this "
            "one's, so files and certificates would have wrong times. Set both by NTP."
        )
    if hello.temporary_failure:
        return f"The host {name} cannot be used: {hello.temporary_failure} there."
    return ""


def _quote(connection: AgentConnection) -> str:
    """Return what ssh has written, to stand in a sentence."""
    lines = connection.ssh_text.splitlines()
    return f" ssh says: {'; '.join(lines[-3:])}" if lines else ""
