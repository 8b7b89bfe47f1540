"""Starts the guard before anything else: it takes as long to start as poprun takes to
import the rest of itself, and there are two cores.

A guard that is never told to start an mpirun ends with poprun and has done nothing.
"""

import _socket
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from poprun import early_signals
from poprun.errors import LaunchError, explain_errno
from poprun.helpers import processes
from poprun.helpers.helper_commands import PYTHON

_pids: list[int] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedGuard:
    """A guard that waits for its first message."""

    pid: int
    # Our end of the socket to it, and the file for its output and mpirun's.
    descriptor: int
    output: int
    # Processes below poprun that are older than the job: children of the program that
    # became poprun by exec.
    older: frozenset[int]
    # The end of its orders, which the socket had no room for.
    unsent: bytes = b""

    def tell(self, message: bytes) -> None:
        """Send a message before it is told to start mpirun."""
        # If it has died, the supervisor tells the next one. Until then a lease, say,
        # ends with poprun.
        with suppress(OSError):
            os.write(self.descriptor, message)


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
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    sent = ours.send(orders, _socket.MSG_DONTWAIT)
    number = theirs.fileno()
    os.set_inheritable(number, True)
    numbers = number, os.getpid(), os.fstat(ours.fileno()).st_ino
    argv = map(os.fsencode, (*PYTHON, "guard", *map(str, numbers)))
    # exec accepts no variable without a name, and no program can read one.
    pairs = ((os.fsencode(k), os.fsencode(v)) for k, v in environ.items() if k)
    try:
        # Its output, should it fail, is shown with mpirun's when nothing else explains
        # how a job ended. A signal that kills mpirun is for its process group.
        pid = processes.spawn(argv, dict(pairs), output, setsid=True)
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    _pids.append(pid)
    early_signals.call_before_message(continue_guards)
    older_pids = frozenset(p.pid for p in older)
    return StartedGuard(
        pid=pid,
        descriptor=ours.detach(),
        output=output,
        older=older_pids,
        unsent=orders[sent:],
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
