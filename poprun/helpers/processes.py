"""What the Linux kernel knows of processes, and how it is asked to end them.

Shims and the guard import this, and start in milliseconds: no ctypes, no signal, no
subprocess, only what is built in or one small shared object.
"""

import _ctypes
import _signal  # type: ignore[import-not-found]  # typeshed has signal only
import os
import sys
import time
from _collections_abc import Callable, Iterable, Mapping  # os has imported them

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
MPOL_BIND = 2
IN_CREATE = 0x100
CLOCK_MONOTONIC = 1
F_SETSIG = 10
HIGH_DESCRIPTOR = 100
# By machine, because no module that starts fast knows the numbers of system calls.
SYS_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "ppc64le": 261, "riscv64": 237}

# What shims and the guard handle: the ends of their children, and signals that are
# meant for poprun, which tells them what follows by messages.
HELPER_SIGNALS = (
    _signal.SIGCHLD,
    _signal.SIGTERM,
    _signal.SIGINT,
    _signal.SIGHUP,
    _signal.SIGQUIT,
    _signal.SIGUSR1,
    _signal.SIGUSR2,
    _signal.SIGTSTP,
)
LONGEST_POLL_MS = 3_600_000
# Between two looks at a tree that is being ended.
LOOK_AGAIN_S = 0.01
# How long to wait for processes that may not be signalled.
NOT_OURS_S = 0.5

_libc = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # None: this process
_prctl = _ctypes.dlsym(_libc, "prctl")
_syscall = _ctypes.dlsym(_libc, "syscall")
_inotify_init1 = _ctypes.dlsym(_libc, "inotify_init1")
_inotify_add_watch = _ctypes.dlsym(_libc, "inotify_add_watch")


def open_umask() -> int:
    """Let this process use what it makes from now on; return the umask before.

    Some users take the owner's permissions away too.
    """
    before = os.umask(0)
    os.umask(before & 0o077)
    return before


def become_subreaper() -> None:
    """Make orphans below this process its children, not init's."""
    _ctypes.call_function(_prctl, (PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def die_with_parent(signal: int, parent: int) -> bool:
    """Ask for a signal when the parent goes; False if it has gone already."""
    _ctypes.call_function(_prctl, (PR_SET_PDEATHSIG, signal, 0, 0, 0))
    return os.getppid() == parent


def continue_regularly(interval: float) -> None:
    """Let the kernel continue this process from now on, should it be stopped.

    Where the C library has no timers (glibc before 2.34), it stays stopped.
    """
    try:
        create = _ctypes.dlsym(_libc, "timer_create")
        start = _ctypes.dlsym(_libc, "timer_settime")
    except OSError:
        return
    # The kernel does not repeat a signal that is ignored, as this one is by default.
    _signal.signal(_signal.SIGCONT, _nothing)
    # struct sigevent: a value, the signal, how it is sent (as a signal: 0).
    event = bytes(8) + _signal.SIGCONT.to_bytes(4, sys.byteorder) + bytes(52)
    timer = _Pointer()
    if _ctypes.call_function(create, (CLOCK_MONOTONIC, event, _ctypes.byref(timer))):
        return
    time_span = bytes(8) + int(interval * 1e9).to_bytes(8, sys.byteorder)
    _ctypes.call_function(start, (timer, 0, time_span * 2, None))


class _Pointer(_ctypes._SimpleCData):  # type: ignore[type-arg]  # not at run time
    _type_ = "P"


def die_with_pipe(read: int) -> None:
    """Let the kernel kill this process's group when a pipe has no writer any more.

    A parent-death signal is not inherited by children. This reaches all of the group,
    as long as one process has the read end open.
    """
    import fcntl

    try:
        # Where a script that numbers its own files is not in its way.
        number = fcntl.fcntl(read, fcntl.F_DUPFD, HIGH_DESCRIPTOR)
    except OSError:  # the limit of open files is lower
        number = os.dup(read)
        os.set_inheritable(number, True)
    kill_group_with_pipe(number, os.getpgrp())


def kill_group_with_pipe(read: int, group: int) -> None:
    """Let the kernel kill a process group when a pipe has no writer any more.

    It does so as long as one process has the read end open.
    """
    import fcntl

    fcntl.fcntl(read, fcntl.F_SETOWN, -group)
    fcntl.fcntl(read, F_SETSIG, _signal.SIGKILL)
    fcntl.fcntl(read, fcntl.F_SETFL, os.O_ASYNC)


def bind_memory(nodes: Iterable[int]) -> bool:
    """Allocate memory on these NUMA nodes only; False where that cannot be asked."""
    number = SYS_SET_MEMPOLICY.get(os.uname().machine)
    if number is None:
        return False
    mask = 0
    for node in nodes:
        mask |= 1 << node
    length = (mask.bit_length() // 64 + 1) * 8
    bits = mask.to_bytes(length, "little")
    # The kernel reads one bit less than it is told.
    arguments = (number, MPOL_BIND, bits, length * 8 + 1)
    return bool(_ctypes.call_function(_syscall, arguments) == 0)


def watch(directories: Iterable[bytes]) -> tuple[int, dict[int, bytes]]:
    """Ask for an event for every file that is made in one of these directories.

    Returns a descriptor to read inotify's events from, -1 if the kernel has none left,
    and which number in an event stands for which directory.
    """
    flags = (os.O_NONBLOCK | os.O_CLOEXEC,)
    descriptor = int(_ctypes.call_function(_inotify_init1, flags))
    watched = {}
    for path in directories:
        arguments = (descriptor, path, IN_CREATE)
        watched[int(_ctypes.call_function(_inotify_add_watch, arguments))] = path
    watched.pop(-1, None)
    return descriptor, watched


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


def process(pid: int) -> Process | None:
    """Look one process up; None if there is no such one."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return Process(pid, file.read())
    except OSError:
        return None


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
    marked = []
    for p in processes().values():
        try:
            with open(f"/proc/{p.pid}/environ", "rb") as file:
                environ = file.read()
        except OSError:  # another user's, or gone
            continue
        if assignment in environ.split(b"\0") and not p.zombie:
            marked.append(p)
    return marked


def ignores(pid: int, signal: int) -> bool:
    """Return whether a process ignores a signal."""
    return _has_signal(b"SigIgn:\t", pid, signal)


def catches(pid: int, signal: int) -> bool:
    """Return whether a process has a handler for a signal."""
    return _has_signal(b"SigCgt:\t", pid, signal)


def _has_signal(name: bytes, pid: int, signal: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            mask = file.read().partition(name)[2].partition(b"\n")[0]
    except OSError:
        return False
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
    refused: dict[tuple[int, int], Process] = {}
    while True:
        waited = time.monotonic() - began
        reap(killing=all_children and waited >= grace)
        left = find()
        if not left and not (all_children and has_children()):
            reap()  # what ended while find() looked
            return len(seen), []
        remaining = [p for p in left if (p.pid, p.start) in refused]
        if waited > limit or (waited > NOT_OURS_S and left and left == remaining):
            return len(seen), remaining
        if waited >= grace:
            refused.update({(p.pid, p.start): p for p in kill(left)})
        else:
            fresh = [p for p in left if (p.pid, p.start) not in seen]
            for p in fresh:
                if not send(_signal.SIGTERM, p):
                    refused[p.pid, p.start] = p
                send(_signal.SIGCONT, p)  # a stopped process cannot act on SIGTERM
        seen.update((p.pid, p.start) for p in left)
        time.sleep(LOOK_AGAIN_S)


def describe(p: Process) -> tuple[int, bytes]:
    """Return a process's real user and its command line, for a sentence about it."""
    try:
        with open(f"/proc/{p.pid}/status", "rb") as file:
            status = file.read()
        with open(f"/proc/{p.pid}/cmdline", "rb") as file:
            words = file.read(4096).rstrip(b"\0").replace(b"\0", b" ")
    except OSError:
        return 0, b""
    user = int(status.partition(b"\nUid:")[2].split(maxsplit=1)[0])
    name = status.partition(b"Name:\t")[2].partition(b"\n")[0]
    return user, words or name


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


def poll_timeout(seconds: float) -> int:
    """Return the timeout for poll() in milliseconds, -1 for none.

    It may be earlier than asked for: poll() takes a C int, which is 24 days.
    """
    if seconds == float("inf"):
        return -1
    return min(max(0, int(seconds * 1000) + 1), LONGEST_POLL_MS)


def kill_group_of_ended() -> None:
    """SIGKILL the process group of a child that has ended, before it is reaped.

    A chain of processes, each of which starts the next and ends, is faster than any
    look at /proc. The kernel signals a process group in one step, in which no member
    can fork, and does not reuse the group's number before the child is reaped.

    Raises:
        ChildProcessError: There are no children.
    """
    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is not None and (group := os.getpgid(ended.si_pid)) != os.getpgrp():
        kill_group(group)


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
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def wake_up_on(*signals: int) -> int:
    """Make signals readable: returns a descriptor that gets one byte for each.

    Their mask and disposition are the caller's no more.
    """
    read, write = os.pipe()
    for end_of_pipe in (read, write):
        os.set_blocking(end_of_pipe, False)
    _signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in signals:
        _signal.signal(number, _nothing)
    # A caller may have blocked them: a signal that ends a job must not wait for ever.
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, signals)
    return read


def end_wake_up(read: int) -> None:
    """Close the descriptor of `wake_up_on`, and the end that signals are written to."""
    os.close(_signal.set_wakeup_fd(-1))
    os.close(read)


def _nothing(number: int, frame: object) -> None:
    """Stand for a handler: the byte in the pipe is all that is wanted."""


def ignored_signals() -> list[int]:
    """Return which signals of a terminal the caller has ignored for this process.

    nohup does so with SIGHUP, a shell without job control with SIGINT and SIGQUIT for
    what it starts in the background.
    """
    terminals = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT, _signal.SIGTSTP)
    return [int(n) for n in terminals if _signal.getsignal(n) == _signal.SIG_IGN]


def spawn(
    argv: Iterable[bytes],
    environment: Mapping[bytes, bytes],
    output: int,
    **options: int,
) -> int:
    """Start a program with nothing on stdin and default signals; return its pid.

    Args:
        output: A descriptor that becomes its stdout and stderr.
        options: More of os.posix_spawn's.

    Raises:
        OSError: It cannot be started.
    """
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, b"/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, output, 1),
        (os.POSIX_SPAWN_DUP2, output, 2),
    ]
    words = tuple(argv)
    return os.posix_spawn(
        words[0],
        words,
        environment,
        file_actions=actions,
        setsigmask=(),
        setsigdef=_signal.valid_signals(),
        **options,  # type: ignore[arg-type]
    )


def read_assignments(words: Iterable[bytes]) -> dict[bytes, bytes]:
    """Return the variables of NAME=VALUE words."""
    pairs = (word.partition(b"=") for word in words)
    return {name: value for name, _, value in pairs}


def default_signals(*, ignored: Iterable[int] = ()) -> None:
    """Give a child about to exec the signals of a fresh process, but for some."""
    for number in _signal.valid_signals():
        if number in ignored:
            _signal.signal(number, _signal.SIG_IGN)
        elif number not in (_signal.SIGKILL, _signal.SIGSTOP):
            try:
                _signal.signal(number, _signal.SIG_DFL)
            except (OSError, ValueError):
                continue  # glibc keeps two real-time signals to itself
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
