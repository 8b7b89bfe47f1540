"""Starts the guard before anything else: it takes as long to start as poprun takes to
import the rest of itself, and there are two cores.

A guard that is never told to start an mpirun ends with poprun and has done nothing.
"""

import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from poprun import early_signals
from poprun.errors import LaunchError, explain_errno
from poprun.helpers import processes
from poprun.helpers.helper_commands import PYTHON
from poprun.wire.channel import Channel

_pids: list[int] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedGuard:
    """A guard that waits for its first message."""

    pid: int
    channel: Channel
    # The file for its output and mpirun's.
    output: int
    # Processes below poprun that are older than the job: children of the program that
    # became poprun by exec.
    older: frozenset[int]

    def tell(self, message: bytes, descriptors: tuple[int, ...] = ()) -> None:
        """Send a message, unless it has died: then the next one is told."""
        self.channel.send(message, descriptors)


def start_guard(
    environ: Mapping[str, str], output: int | None = None, orders: bytes = b""
) -> StartedGuard:
    """Start a guard.

    Args:
        output: The file for output of the guard before this one.
        orders: Messages that it finds when it comes up, even if poprun is gone by then.

    Raises:
        LaunchError: The kernel allows no more processes or descriptors.
    """
    call = "memfd_create"
    try:
        if output is None:
            output = os.memfd_create("mpirun")
        call = "posix_spawn"
        return _spawn(environ, output, orders)
    except OSError as error:
        raise LaunchError(
            f"poprun's guard could not be started: {call}(): "
            f"{explain_errno(error.errno or 0)}"
        ) from None


def _spawn(environ: Mapping[str, str], output: int, orders: bytes) -> StartedGuard:
    older = processes.descendants([os.getpid()]) if processes.has_children() else []
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    channel.send(orders)
    number = theirs.fileno()
    theirs.set_inheritable(True)
    numbers = number, os.getpid(), os.fstat(ours.fileno()).st_ino
    argv = map(os.fsencode, (*PYTHON, "guard", *map(str, numbers)))
    # exec accepts no variable without a name, and no program can read one.
    pairs = ((os.fsencode(k), os.fsencode(v)) for k, v in environ.items() if k)
    try:
        # Its output, should it fail, is shown with mpirun's when nothing else explains
        # how a job ended. A signal that kills mpirun is for its process group.
        pid = processes.spawn(argv, dict(pairs), output, setsid=True)
    except OSError:
        channel.close()
        raise
    finally:
        theirs.close()
    _pids.append(pid)
    early_signals.call_before_message(continue_guards)
    return StartedGuard(
        pid=pid,
        channel=channel,
        output=output,
        older=frozenset(process.pid for process in older),
    )


def continue_guards() -> None:
    """Continue living guards that are stopped, before poprun exits.

    A guard asks the kernel to do so, but one may be stopped before it has asked.
    """
    for pid in _pids:
        guard = processes.process(pid)
        # Once it is reaped, its number may be another's.
        if guard is not None and guard.parent == os.getpid():
            processes.send(signal.SIGCONT, guard)
