"""Reaches hosts by any command that takes a host, a program and its arguments.

mpirun calls the command of its option plm_rsh_agent in the same way, so a script of the
MPI Operator that runs `kubectl exec` serves as well.
"""

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poprun.errors import OptionError
from poprun.host_specs import HostSpec
from poprun.log import Log
from poprun.reach.connections.connector import (
    MOST_LINES,
    CommandEnd,
    Connector,
    UserCommand,
    unusable,
)
from poprun.reach.connections.ssh import Ssh


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherCommand(UserCommand):
    """The Connector that is started as COMMAND HOST PROGRAM ARGUMENT..."""

    name = "command"

    @property
    def remote_shell(self) -> Sequence[str]:
        return self.words

    def argv(self, host: HostSpec, program: Sequence[str]) -> list[str]:
        # mpirun does the same. Commands run the words, or pass them to a shell.
        return [*self.words, host.target, *map(shlex.quote, program)]

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        # The addresses in it are wrong on other hosts.
        return {n: value for n, value in environ.items() if n != "SSH_CONNECTION"}

    def explain(self, host: HostSpec, end: CommandEnd, entry: str = "") -> str:
        speaker = os.path.basename(self.words[0])
        see = f"See: {self.shown(host)}"
        if end.exit_code is None:
            meaning, advice = f"{speaker} starts no agent on it", see
        else:
            meaning, advice = end.missing_software(entry) or (
                f"{speaker} ended with exit code {end.exit_code}",
                see,
            )
        return unusable(host, meaning, speaker, end.lines[-MOST_LINES:], advice)

    def distribute_key(
        self, hosts: Sequence[HostSpec], environ: Mapping[str, str], log: Log
    ) -> None:
        raise OptionError(
            f"--distribute-ssh-key works with ssh only, not with --ssh {self.text!r}. "
            "Leave it out."
        )


def find_command(text: str, environ: Mapping[str, str]) -> Connector:
    """Return the command that --ssh names: a program and options, as in a shell.

    It is ssh, and gets ssh's options, if one of its words is the name of ssh.

    Raises:
        OptionError: There is no such program.
    """
    try:
        first, *others = shlex.split(text)
    except ValueError:
        raise OptionError(
            f"--ssh {text!r} is not a command: it has no program, or an "
            "unmatched quotation mark. Write it like --ssh 'ssh -F my_config'."
        ) from None
    path = shutil.which(first, path=environ.get("PATH", os.defpath))
    if path is None:
        raise OptionError(
            f"There is no program {first!r} to reach other hosts with. Install "
            "ssh with 'apt install openssh-client', or name another command "
            "with --ssh."
        )
    kind = Ssh if "ssh" in map(os.path.basename, (first, *others)) else OtherCommand
    return kind(words=(path, *others), text=text)
