"""The smallest of mpiruns: starts shims on this machine, and knows no MPI.

    local [--survive] COMMAND... : COMMAND... : COMMAND...

It starts one process for each command line, waits for all, and passes SIGTERM on. When
one of them fails it ends the others, as every mpirun does: poprun may not have heard of
that one yet, and would wait for it. With --survive poprun sends SIGUSR1 when it has
heard of all. From then on the others go on, and the launcher fails only if all of them
fail; and at SIGUSR2 it starts those commands again that have failed. It is for machines
without an MPI, for elastic jobs, and for tests that need no MPI.
"""

import _signal  # type: ignore[import-not-found]  # typeshed has signal only
import os
import time
from itertools import groupby

from poprun.helpers import own_process, processes

# The time from SIGTERM to SIGKILL; Open MPI 5 has the same.
TERM_GRACE_S = 0.25
# From the failure of a process to the end of the others. When poprun knows of the
# failure it stops them itself within this time.
FAILURE_S = 1.5
# From a start that the kernel refuses to the next try.
AGAIN_S = 1.0
NEVER = float("inf")
SURVIVE = "--survive"


def main(arguments: list[str]) -> None:
    # Before the first start: a child may end at once.
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
    sigterm = own_process.receive_sigterm()
    wake = own_process.wake_up_on(
        *(_signal.SIGCHLD, _signal.SIGINT, _signal.SIGHUP),
        *(_signal.SIGUSR1, _signal.SIGUSR2),
    )
    poll = processes.poll_on(wake, sigterm)
    may_survive = arguments[:1] == [SURVIVE]
    arguments = arguments[may_survive:]
    # The command of each process, and those that have failed.
    children: dict[int, list[str]] = {}
    failed: list[list[str]] = []
    exit_code, end_at, survives, has_succeeded = 0, NEVER, False, False
    # poprun may hear of a failure earlier than this process.
    starts_again = False
    try:
        for argv in split_commands(arguments):
            children[_spawn(argv, mask)] = argv
    except OSError as error:
        _say(f"The local launcher cannot start {argv[0]}: {error.strerror}.")
        is_unusable = isinstance(error, FileNotFoundError | PermissionError)
        exit_code, end_at = 127 if is_unusable else 1, 0.0
    while children:
        again_s = AGAIN_S if starts_again and failed else NEVER
        timeout = min(end_at - time.monotonic(), again_s)
        for descriptor, _ in poll.poll(processes.poll_timeout(timeout)):
            if descriptor == sigterm:
                is_to_end = not own_process.read_sigterm(sigterm, os.environ)
            else:
                signals = set(os.read(descriptor, 4096))
                known = {_signal.SIGCHLD, _signal.SIGUSR1, _signal.SIGUSR2}
                is_to_end = bool(signals - known)
                if may_survive and _signal.SIGUSR1 in signals:
                    survives = True
                    # poprun has heard of a failure until now, too.
                    end_at = NEVER if end_at else end_at
                starts_again |= survives and _signal.SIGUSR2 in signals
            if is_to_end:
                exit_code, end_at = exit_code or 1, 0.0
        if time.monotonic() >= end_at:
            _end(children)
            end_at = NEVER
        for pid, status in processes.reap():
            argv = children.pop(pid, [])
            has_succeeded |= not status
            if status and argv:
                failed.append(argv)
            if status and not exit_code:
                exit_code = processes.exit_code(status)
                how = f"returned {exit_code}"
                if os.WIFSIGNALED(status):
                    how = f"was killed by signal {os.WTERMSIG(status)}"
                if not survives:
                    unless = " unless poprun lets them go on" if may_survive else ""
                    how += f", and the local launcher ends the others{unless}"
                    end_at = time.monotonic() + FAILURE_S
                _say(f"Process {pid} {how}.")
        try:
            while starts_again and failed:
                children[_spawn(failed[-1], mask)] = failed[-1]
                failed.pop()
                starts_again = bool(failed)
        except OSError as error:
            # The others go on meanwhile.
            _say(f"The local launcher cannot start {failed[-1][0]}: {error.strerror}.")
    # Each of the others may have been lost with its host.
    raise SystemExit(0 if survives and has_succeeded else exit_code)


def _say(sentence: str) -> None:
    os.write(2, f"{sentence}\n".encode())


def split_commands(arguments: list[str]) -> list[list[str]]:
    """Split arguments at each ":"."""
    groups = groupby(arguments, lambda argument: argument != ":")
    return [list(command) for is_command, command in groups if is_command]


def _spawn(argv: list[str], mask: set[int]) -> int:
    return os.posix_spawn(argv[0], argv, os.environ, setsigmask=mask)


def _end(children: dict[int, list[str]]) -> None:
    for pid in children:
        os.kill(pid, _signal.SIGTERM)
    time.sleep(TERM_GRACE_S)
    for pid in children:
        os.kill(pid, _signal.SIGKILL)
