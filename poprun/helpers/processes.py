"""Other processes: looks them up in /proc, and starts, signals and ends them.

Shims and the guard import this, and start in milliseconds: so it imports built-in
modules only, and not signal or subprocess.
"""

import _signal  # type: ignore[import-not-found]  # typeshed has signal only
import os
import select
import time
from _collections_abc import Callable, Iterable, Mapping  # os has imported them

LONGEST_POLL_MS = 3_600_000
SHELL, BASH = b"/bin/sh", b"/bin/bash"
# Between two looks at a tree that is being ended.
LOOK_AGAIN_S = 0.01
# How long to wait for processes that may not be signalled.
NOT_OURS_S = 0.5
# si_code and si_status of a child that SIGKILL has ended.
KILLED = (os.CLD_KILLED, _signal.SIGKILL)


class Process:
    """A process as /proc shows it at one moment."""

    __slots__ = ("group", "parent", "pid", "start", "stopped", "zombie")

    def __init__(self, pid: int, stat: bytes) -> None:
        # The name in parentheses may hold anything, parentheses too.
        fields = stat[stat.rindex(b")") + 2 :].split()
        self.pid = pid
        # A leader that has left its other threads behind is in state Z as well.
        threads = int(fields[17])
        self.zombie = fields[0] in (b"Z", b"X") and threads <= 1
        self.stopped = fields[0] in (b"T", b"t")
        self.parent = int(fields[1])
        self.group = int(fields[2])
        self.start = int(fields[19])


def read_proc(pid: int, name: str) -> bytes:
    """Return a file of a process in /proc; b"" if it has ended, or may not be read."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def process(pid: int) -> Process | None:
    """Look one process up; None if it does not exist."""
    stat = read_proc(pid, "stat")
    return Process(pid, stat) if stat else None


def start_time(pid: int) -> int:
    """Return when a process started: with the pid, a name that is never reused."""
    entry = process(pid)
    return entry.start if entry else 0


def processes() -> dict[int, Process]:
    """Look all processes up."""
    entries = (process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {p.pid: p for p in entries if p}


def descendants(roots: Iterable[int]) -> list[Process]:
    """Return what lives below some processes, without themselves."""
    table = processes()
    children: dict[int, list[Process]] = {}
    for p in table.values():
        children.setdefault(p.parent, []).append(p)
    living, queue = [], list(roots)
    while queue:
        for child in children.get(queue.pop(), ()):
            queue.append(child.pid)
            if not child.zombie:
                living.append(child)
    return living


def with_variable(assignment: bytes) -> list[Process]:
    """Return the processes that were started with NAME=VALUE in their environment."""
    return [
        p
        for p in processes().values()
        if assignment in read_proc(p.pid, "environ").split(b"\0") and not p.zombie
    ]


def ignores(pid: int, signal: int) -> bool:
    """Return whether a process ignores a signal."""
    return _has_signal(b"SigIgn:\t", pid, signal)


def catches(pid: int, signal: int) -> bool:
    """Return whether a process has a handler for a signal."""
    return _has_signal(b"SigCgt:\t", pid, signal)


def _has_signal(name: bytes, pid: int, signal: int) -> bool:
    mask = read_proc(pid, "status").partition(name)[2].partition(b"\n")[0]
    return bool(mask) and bool(int(mask, 16) & 1 << signal - 1)


def send(signal: int, target: Process) -> bool:
    """Signal one process, and never another that has got its number since.

    Returns False if this user may not signal it.
    """
    if target.pid <= 1:
        return True
    try:
        handle = os.pidfd_open(target.pid)
    except OSError:
        return True
    try:
        if start_time(target.pid) == target.start:
            _signal.pidfd_send_signal(handle, signal)
    except PermissionError:
        return False
    except OSError:
        pass  # it has ended
    finally:
        os.close(handle)
    return True


def kill(tree: list[Process]) -> list[Process]:
    """Send SIGKILL to a tree, the youngest first; return what may not be signalled.

    The supervisors in it come last: if this process is killed on the way they go on.
    """
    return [p for p in reversed(tree) if not send(_signal.SIGKILL, p)]


def _terminate(p: Process) -> bool:
    """Send SIGTERM; return False if this user may not signal the process."""
    is_sent = send(_signal.SIGTERM, p)
    send(_signal.SIGCONT, p)  # a stopped process cannot act on SIGTERM
    return is_sent


def end(
    find: Callable[[], list[Process]],
    grace: float,
    limit: float,
    *,
    all_children: bool = False,
) -> tuple[int, list[Process]]:
    """End what `find` finds: SIGTERM, then after `grace` seconds SIGKILL.

    Children of this process are reaped on the way, all others are another process's
    to reap. Returns how many different processes there were, and those among them that
    remain because this user may not signal them.

    Args:
        limit: Give up after so many seconds: a process in an uninterruptible wait
            dies when the wait ends, and not before.
        all_children: End all children of this process, also those that `find` is too
            slow for.
    """
    began = time.monotonic()
    seen: set[tuple[int, int]] = set()
    refused: set[tuple[int, int]] = set()
    while True:
        waited = time.monotonic() - began
        reap(killing=all_children and waited >= grace)
        living = find()
        if not living and not (all_children and has_children()):
            reap()  # what ended while find() looked
            return len(seen), []
        remaining = [p for p in living if (p.pid, p.start) in refused]
        if waited > limit or (waited > NOT_OURS_S and living and living == remaining):
            return len(seen), remaining
        if waited >= grace:
            not_ours = kill(living)
        else:
            new = [p for p in living if (p.pid, p.start) not in seen]
            not_ours = [p for p in new if not _terminate(p)]
        refused.update((p.pid, p.start) for p in not_ours)
        seen.update((p.pid, p.start) for p in living)
        time.sleep(LOOK_AGAIN_S)


def describe(p: Process) -> tuple[int, bytes]:
    """Return a process's real user and its command line, for a sentence about it."""
    status = read_proc(p.pid, "status")
    if not status:
        return 0, b""
    user = int(status.partition(b"\nUid:")[2].split(maxsplit=1)[0])
    name = status.partition(b"Name:\t")[2].partition(b"\n")[0]
    command = read_proc(p.pid, "cmdline")[:4096].rstrip(b"\0").replace(b"\0", b" ")
    return user, command or name


def reap(*, killing: bool = False) -> list[tuple[int, int]]:
    """Collect the children that have ended, as pid and wait status.

    Args:
        killing: SIGKILL the process group of each: see kill_group_of_ended.
    """
    ended: list[tuple[int, int]] = []
    while True:
        try:
            if killing:
                kill_group_of_ended()
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status))


def exit_code(status: int) -> int:
    """Return what a shell would say: 128 and the signal's number for a signal."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def signal_name(number: int) -> str:
    """Return a signal's name, as the module signal has it, which takes long to load."""
    names = (n for n in dir(_signal) if n.startswith("SIG") and n[3] != "_")
    fitting = (name for name in names if getattr(_signal, name) == number)
    return next(fitting, f"signal {number}")


def poll_on(*descriptors: int) -> "select.poll":
    """Return a poll object that waits until one of these can be read."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return poll


def poll_timeout(seconds: float) -> int:
    """Return the timeout for poll() in milliseconds, -1 for none.

    It may be earlier than asked for: poll() takes a C int, which is 24 days.
    """
    if seconds == float("inf"):
        return -1
    return min(max(0, int(seconds * 1000) + 1), LONGEST_POLL_MS)


def kill_group_of_ended() -> None:
    """SIGKILL the process group of a child that has ended, before it is reaped.

    A chain of processes that each start the next one and end is faster than any look
    at /proc. The kernel signals a process group in one step, in which no member
    can fork, and does not reuse the group's number before the child is reaped.

    Raises:
        ChildProcessError: There are no children.
    """
    ended = ended_child()
    if ended is not None and (group := os.getpgid(ended.si_pid)) != os.getpgrp():
        kill_group(group)


def ended_child(child: int = 0) -> os.waitid_result | None:
    """Return how a child, or any, has ended, without reaping it; None if it lives.

    Raises:
        ChildProcessError: There is no such child.
    """
    which = os.P_PID if child else os.P_ALL
    return os.waitid(which, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)


def is_at_cpu_limit(ended: os.waitid_result) -> bool:
    """Return whether a child, not reaped yet, was killed at its limit of CPU time."""
    if (ended.si_code, ended.si_status) != KILLED:
        return False
    limits = read_proc(ended.si_pid, "limits")
    limit = limits.partition(b"Max cpu time")[2].split(maxsplit=2)[1:2]
    stat = read_proc(ended.si_pid, "stat")
    if not limit or not stat or not limit[0].isdigit():
        return False
    ticks = sum(map(int, stat.rpartition(b")")[2].split()[11:13]))
    # The kernel compares ticks with the limit, and shows them here scaled to the exact
    # time, which may be less.
    return 2 * ticks / os.sysconf("SC_CLK_TCK") >= int(limit[0])


def kill_group(group: int) -> None:
    """SIGKILL a process group."""
    try:
        os.killpg(group, _signal.SIGKILL)
    except OSError:
        return  # none of it lives, or none may be signalled


def wait_for(child: int) -> None:
    """Wait until a child that is about to end has ended."""
    try:
        os.waitpid(child, 0)
    except ChildProcessError:  # it has been reaped already
        return


def has_children() -> bool:
    """Return whether anything lives below this process.

    For a subreaper this is exact and costs one system call: an orphan becomes its
    child before any process can learn of the parent's death.
    """
    try:
        ended_child()
    except ChildProcessError:
        return False
    return True


def spawn(
    argv: Iterable[bytes],
    environment: Mapping[bytes, bytes],
    output: int,
    *,
    stdout: int = -1,
    blocked: Iterable[int] = (),
    **options: int,
) -> int:
    """Start a program with nothing on stdin and default signals; return its pid.

    Args:
        output: A descriptor that becomes its stderr, and its stdout without another.
        stdout: That other one.
        blocked: Signals that are blocked in it.
        options: More of os.posix_spawn's.

    Raises:
        OSError: It cannot be started.
    """
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, b"/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, output if stdout < 0 else stdout, 1),
        (os.POSIX_SPAWN_DUP2, output, 2),
    ]
    arguments = tuple(argv)
    return os.posix_spawn(
        arguments[0],
        arguments,
        environment,
        file_actions=actions,
        setsigmask=blocked,
        setsigdef=_signal.valid_signals(),
        **options,  # type: ignore[arg-type]
    )


def fork_program(
    become: Callable[[int], None], fault_pipe: tuple[int, int], peer: int
) -> tuple[int, bytes]:
    """Fork a child that becomes a program; return its pid, and its failure.

    The failure is b"" if the child has become the program.

    Args:
        become: Is called in the child with a descriptor. It writes its failure there,
            or ends by exec.
        fault_pipe: The pipe for the failure. Both ends are closed in the end.
        peer: A socket. The child may be stopped before its exec, and posix_spawn()
            would wait for that in vain; so it is killed when the socket's peer is gone.

    Raises:
        OSError: There is no child.
    """
    fault_read, fault_write = fault_pipe
    try:
        fork = os.fork()
        if fork == 0:
            try:
                become(fault_write)
            finally:
                os._exit(127)
    except OSError:
        os.close(fault_read)
        raise
    finally:
        os.close(fault_write)
    return fork, _read_fault(fault_read, fork, peer)


def _read_fault(read: int, fork: int, peer: int) -> bytes:
    poll = poll_on(read)
    poll.register(peer, 0)  # for POLLHUP, which needs no mask
    fault = b""
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == peer:
                os.kill(fork, _signal.SIGKILL)
                poll.unregister(peer)
            elif piece := os.read(read, 4096):
                fault += piece
            else:
                os.close(read)
                return fault


def shell(command: bytes, *, keeps_mask: bool) -> list[bytes]:
    """Return the argv of a shell that runs a command.

    Args:
        keeps_mask: Keep the caller's signal mask. Some shells, such as dash, unblock
            all signals.
    """
    if keeps_mask and os.access(BASH, os.X_OK):
        # Without --posix it would read a file of the user's.
        return [BASH, b"--posix", b"-c", command]
    return [SHELL, b"-c", command]


def read_assignments(assignments: Iterable[bytes]) -> dict[bytes, bytes]:
    """Return the variables of NAME=VALUE assignments."""
    pairs = (each.partition(b"=") for each in assignments)
    return {name: value for name, _, value in pairs}
