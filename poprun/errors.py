"""poprun's exit codes and exceptions, and the reasons of an errno."""

import errno
import os

# The exit codes of poprun itself, and REQUEST_FAILED for popctl and vipu.
REQUEST_FAILED = 1
INVALID = 2
UNWRITTEN = 74
TIMED_OUT = 124
MACHINERY_FAILED = 125
NOT_EXECUTABLE = 126
NOT_FOUND = 127
# 128 and the number of SIGPIPE, as in a shell.
OUTPUT_CLOSED = 141


class PoprunError(Exception):
    """The base class of the errors that poprun raises.

    Args:
        hint: A way out, for a line below the message.
    """

    exit_code = INVALID

    def __init__(self, sentence: str = "", hint: str = "") -> None:
        super().__init__(sentence)
        if hint:
            self.add_note(hint)

    @property
    def hints(self) -> list[str]:
        return getattr(self, "__notes__", [])


class OptionError(PoprunError):
    """An option on the command line, in a variable or in a file is not valid."""


class TopologyError(PoprunError):
    """The replicas cannot be divided equally among the instances."""


class HostError(PoprunError):
    """A host or a list of hosts is not valid."""


class HostUnreachableError(PoprunError):
    """A host of the job cannot be used: ssh does not reach it, or it is not ready."""

    exit_code = MACHINERY_FAILED


class SlurmError(HostUnreachableError):
    """Slurm does not say which nodes a job has."""


class MpiArgumentError(PoprunError):
    """An argument for mpirun contradicts poprun, or this mpirun lacks it."""


class MpiNotFoundError(PoprunError):
    """There is no mpirun, or the file is not an mpirun."""

    exit_code = MACHINERY_FAILED


class ProgramNotFoundError(PoprunError):
    """The program does not exist."""

    exit_code = NOT_FOUND


class ProgramNotExecutableError(PoprunError):
    """The program exists but cannot be run."""

    exit_code = NOT_EXECUTABLE


class LaunchError(PoprunError):
    """The launcher failed, not an instance."""

    exit_code = MACHINERY_FAILED


class JobRequestError(PoprunError):
    """There is no such running job, or it does not do what popctl asks for."""

    exit_code = REQUEST_FAILED


_WAYS_OUT = {
    errno.EAGAIN: "The limit on processes has been reached: see 'ulimit -u' and "
    "pids.max of the cgroup.",
    errno.EMFILE: "Raise the limit of open files with 'ulimit -n'.",
    errno.ENFILE: "The machine's limit on open files has been reached: see "
    "fs.file-max.",
    errno.ENOMEM: "There is not enough memory.",
    errno.ENOSPC: "Make room there.",
    errno.EDQUOT: "Make room there.",
}


def explain_errno(number: int) -> str:
    """Return the reason of an errno, and the way out if there is one."""
    text = f"{os.strerror(number)}."
    return f"{text} {_WAYS_OUT[number]}" if number in _WAYS_OUT else text


def is_shortage(number: int) -> bool:
    """Return whether an errno says that something has run out."""
    return number in _WAYS_OUT
