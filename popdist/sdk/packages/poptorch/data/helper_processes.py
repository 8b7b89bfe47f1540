"""Processes that multiprocessing starts: what its own interface does not offer."""

import os
import select
import signal
from contextlib import suppress
from functools import cache
from multiprocessing import forkserver, resource_tracker
from multiprocessing.util import Finalize
from typing import Any

# How long each of them may take to end.
GRACE_S = 2.0


@cache
def end_helpers_at_exit() -> None:
    """Make the program wait at its end for the forkserver and the resource tracker.

    They end with it by themselves, but perhaps after it: poprun would report them.
    """
    # Below 0: after multiprocessing has joined the processes that they serve.
    Finalize(None, _end_helpers, exitpriority=-1)


def preload_torch() -> None:
    """Let the forkserver import torch once for all forks, which takes seconds.

    A program that has chosen what it imports keeps its choice.
    """
    # Any: it is not public.
    server: Any = forkserver
    if server._forkserver._preload_modules == ["__main__"]:
        forkserver.set_forkserver_preload(["torch"])


def _end_helpers() -> None:
    # Any: none of it is public.
    server: Any = forkserver
    tracker: Any = resource_tracker
    # It has nothing to clean, and torch would take half a second to end in it.
    _end(server._forkserver, "_forkserver_pid", "_forkserver_alive_fd", is_killed=True)
    _end(tracker._resource_tracker, "_pid", "_fd")


def _end(
    helper: Any, pid_name: str, descriptor_name: str, is_killed: bool = False
) -> None:
    """Close the pipe that keeps a process running, and wait for its end."""
    pid = getattr(helper, pid_name)
    descriptor = getattr(helper, descriptor_name)
    # In a child of the program they have no pid: they are not its children.
    if pid is None or descriptor is None:
        return
    os.close(descriptor)
    setattr(helper, descriptor_name, None)
    # The program may have waited for all its children, and so for this one.
    with suppress(ChildProcessError):
        if os.waitpid(pid, os.WNOHANG) == (0, 0):
            watched = os.pidfd_open(pid)
            if is_killed:
                os.kill(pid, signal.SIGKILL)
            # Another process that has the pipe open keeps it alive: then it is left.
            select.select([watched], [], [], GRACE_S)
            os.close(watched)
            os.waitpid(pid, os.WNOHANG)
        setattr(helper, pid_name, None)
