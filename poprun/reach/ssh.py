"""The command that reaches other hosts: ssh, or what --ssh names."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poprun.errors import OptionError
from poprun.plan.hosts import HostSpec

# How long ssh tries to connect. It ends, and says why, before poprun gives up.
CONNECT_S = 4
OPTIONS = (
    "-T",
    "-x",
    "-a",
    "-o",
    "BatchMode=yes",
    "-o",
    f"ConnectTimeout={CONNECT_S}",
    # The ports that a user forwards are not for the connections of a job.
    "-o",
    "ClearAllForwardings=yes",
    # An existing master is used. A new one would end with the job, and the connections
    # of others with it.
    "-o",
    "ControlMaster=no",
    # A host that is stopped for a while is not lost: see reach/silence.py.
    "-o",
    "ServerAliveInterval=0",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ssh:
    """A program that runs a command on another host, and options for it."""

    words: tuple[str, ...]
    # As the user writes it.
    text: str

    def argv(
        self, host: HostSpec, command: str, options: Sequence[str] = OPTIONS
    ) -> list[str]:
        """Return the argv that runs a shell command on a host."""
        return [*self.words, *options, "--", target(host), command]

    @property
    def remote_shell(self) -> list[str]:
        """The words before a host and a command: a remote shell, for rsync."""
        return [*self.words, *OPTIONS]

    def agent_argv(self, host: HostSpec, words: Sequence[str]) -> list[str]:
        """Return the argv that runs an agent on a host."""
        return self.argv(host, f"exec {shlex.join(words)}")

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment in which it is to run."""
        return without_questions(environ)

    def shown(self, host: HostSpec, command: str = "true") -> str:
        """Return a command for the user to type."""
        return f"{self.text} {target(host)} {command}"


def target(host: HostSpec) -> str:
    """Return a host as ssh reads it."""
    return host.name if host.user is None else f"{host.user}@{host.name}"


def find_ssh(command: str, environ: Mapping[str, str]) -> Ssh:
    """Return the command that --ssh names: a program and options, as in a shell.

    Raises:
        OptionError: There is no such program.
    """
    try:
        first, *others = shlex.split(command)
    except ValueError:
        raise OptionError(
            f"--ssh {command!r} is not a command: it has no program, or an "
            "unmatched quotation mark. Write it like --ssh 'ssh -F my_config'."
        ) from None
    places = environ.get("PATH", os.defpath).split(os.pathsep)
    candidates = [first] if "/" in first else [os.path.join(p, first) for p in places]
    for path in candidates:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return Ssh(words=(path, *others), text=command)
    raise OptionError(
        f"There is no program {first!r} to reach other hosts with. Install "
        "ssh with 'apt install openssh-client', or name another command "
        "with --ssh."
    )


def without_questions(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of an ssh that must not open a window to ask anything.

    BatchMode is not passed on to the ssh that connects to a jump host.
    """
    return {**environ, "SSH_ASKPASS_REQUIRE": "never"}
