"""The smallest of mpiruns: starts shims on this machine, and knows no MPI.

    local WORD... : WORD... : WORD...

It forks one process for each group of words, waits for all, and passes SIGTERM on.
It is for machines without an MPI, and for everything that can be tested without one.
"""

import _signal  # type: ignore[import-not-found]  # typeshed has signal only
import os
import time

from poprun import kernel

# As Open MPI 5 does: so long from SIGTERM to SIGKILL.
PATIENCE_S = 0.25


def main(words: list[str]) -> None:
    # Before the first start: a child may end at once.
    wake = kernel.wake_up_on(
        _signal.SIGCHLD, _signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP
    )
    os.set_blocking(wake, True)
    children = {_start(argv) for argv in groups(words)}
    worst = 0
    while children:
        for number in os.read(wake, 4096):
            if number != _signal.SIGCHLD:
                _end(children)
                worst = worst or 1
        for pid, status in kernel.reap():
            children.discard(pid)
            worst = worst or os.waitstatus_to_exitcode(status) & 0xFF
    raise SystemExit(worst)


def groups(words: list[str]) -> list[list[str]]:
    """Cut words at each ":"."""
    found: list[list[str]] = [[]]
    for word in words:
        if word == ":":
            found.append([])
        else:
            found[-1].append(word)
    return found


def _start(argv: list[str]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            os.execv(argv[0], argv)
        finally:
            os._exit(127)
    return pid


def _end(children: set[int]) -> None:
    for pid in children:
        os.kill(pid, _signal.SIGTERM)
    time.sleep(PATIENCE_S)
    for pid in children:
        os.kill(pid, _signal.SIGKILL)
