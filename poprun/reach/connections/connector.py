"""The interface of the commands that run programs on other hosts: ssh, srun or another.

Each of them is one class (ssh.py, srun.py, other_command.py). poprun starts its agents
and copies folders with a Connector, and does not know which one it is.
"""

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from poprun.errors import NOT_EXECUTABLE, NOT_FOUND, HostUnreachableError
from poprun.host_specs import HostSpec
from poprun.log import Log
from poprun.reach.connections.silence import peer_of_process_is_gone
from poprun.words import printable

# The most lines of a command's stderr that a message shows.
MOST_LINES = 2
# srun writes it, without a failure, if processors are not bound to tasks.
_NOTICE = "cluster configuration lacks support for cpu binding"


def take_failures(
    failed: Mapping[HostSpec, str], failures: dict[HostSpec, str] | None
) -> None:
    """Add failed hosts to those that the job does without.

    Args:
        failed: A sentence for each of them.
        failures: None for a job that needs all of its hosts.

    Raises:
        HostUnreachableError: The job needs one of them; names all.
    """
    if failures is not None:
        failures |= failed
    elif failed:
        raise HostUnreachableError("\n".join(failed.values()))


def errors_in(text: str) -> str:
    """Return what a connector's stderr says of failures."""
    lines = (line for line in text.splitlines() if _NOTICE not in line)
    return "\n".join(lines).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEnd:
    """The end of a command that runs a program on another host."""

    # None: it has not ended by itself.
    exit_code: int | None
    # The texts of its stderr and stdout.
    errors: str
    output: str = ""

    def has(self, pattern: str) -> bool:
        return re.search(pattern, self.errors, re.IGNORECASE) is not None

    @property
    def lines(self) -> list[str]:
        """The lines of stderr, without their full stops."""
        lines = (line.strip().rstrip(".") for line in self.errors.splitlines())
        return [line for line in lines if line]

    def missing_software(self, entry: str) -> tuple[str, str] | None:
        """Return which software the host lacks, and the way out.

        Args:
            entry: The file of the agent that was to be started, "" for another program.
        """
        python = re.escape(sys.executable)
        # A csh ends with 1; and a login shell that cannot be run ends as these do.
        is_missing = self.has(rf"{python}.*(not found|permission denied)")
        has_failed = self.exit_code in (NOT_FOUND, NOT_EXECUTABLE)
        meaning = ""
        if is_missing or (has_failed and self.has(python)):
            meaning = f"it cannot run {sys.executable}, poprun's Python here"
            if (file := os.path.realpath(sys.executable)) != sys.executable:
                meaning += f", a link to {file}"
            software = "the same Python"
        elif entry and self.has(re.escape(entry)) and self.has("no such file"):
            meaning = f"it has no poprun in {entry.rpartition('/host/')[0]}"
            software = "poprun"
        if not meaning:
            return None
        return meaning, (
            f"Install {software} at the same path there; "
            "--synchronise-python-venv=yes copies a virtual environment."
        )


class Connector(Protocol):
    """A command that runs a program on another host.

    Subclasses inherit the methods with a body, which suit most commands.
    """

    @property
    def name(self) -> str:
        """Its name in messages, which the agents get as an argument, too."""

    @property
    def exit_s(self) -> float:
        """How long it may take to end after its agent, before it is killed."""
        return 0.0

    @property
    def remote_shell(self) -> Sequence[str]:
        """The words before a host and a command, for rsync."""

    def argv(self, host: HostSpec, program: Sequence[str]) -> list[str]:
        """Return the argv that runs a program on a host, with stdin and stdout."""

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the command's environment.

        Args:
            environ: poprun's environment.
        """

    def shown(self, host: HostSpec, command: str = "true") -> str:
        """Return a command line for the user to type."""

    def explain(self, host: HostSpec, end: CommandEnd, entry: str = "") -> str:
        """Return a sentence about a host that cannot be used, and the way out.

        Args:
            entry: The file of the agent that was to be started, "" for another program.
        """

    def is_temporary(self, end: CommandEnd) -> bool:
        """Return whether the same may succeed when it is tried again."""
        return False

    def distribute_key(
        self, hosts: Sequence[HostSpec], environ: Mapping[str, str], log: Log
    ) -> None:
        """Make hosts accept the user without a password, if they ask for one.

        Raises:
            PoprunError: This is not possible.
        """
        return None

    def on_hello(self, pid: int) -> None:
        """Get the command's process ready for the job, once its agent has answered."""
        return None

    def host_environment(
        self, agent: Mapping[str, str], own: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the environment that instances on the host begin with.

        Args:
            agent: The environment of the agent there.
            own: poprun's environment.
        """
        return dict(agent)

    def loss_check(self, pid: int, ssh_connection: str) -> Callable[[], bool] | None:
        """Return a function that detects the loss of a silent host.

        Args:
            pid: The process of the command.
            ssh_connection: SSH_CONNECTION on the host, "" if it is not set there.

        Returns:
            None if there is no sign of a loss but the end of the command.
        """
        return partial(peer_of_process_is_gone, pid)

    def is_direct(self, ssh_connection: str) -> bool:
        """Return whether one TCP connection leads to the host.

        If so, it is closed there as soon as it is closed here.
        """
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCommand(Connector):
    """A Connector that the user names by --ssh."""

    # The command, and the same as the user writes it.
    words: tuple[str, ...]
    text: str

    def shown(self, host: HostSpec, command: str = "true") -> str:
        return f"{self.text} {host.target} {command}"


def unusable(
    host: HostSpec, meaning: str, speaker: str, lines: Sequence[str], advice: str
) -> str:
    """Return the sentences about a host that cannot be used.

    Args:
        speaker: The program that has written the lines.
    """
    words = quotation(speaker, lines)
    return f"The host {host.name} cannot be used: {meaning}.{words} {advice}"


def quotation(speaker: str, lines: Sequence[str]) -> str:
    """Return a sentence with what a program has written, "" for nothing."""
    text = printable("; ".join(lines))
    return f" {speaker} says: '{text}'." if text else ""
