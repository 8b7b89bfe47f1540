"""Requests of poprun and its helpers to the Linux kernel about their own processes.

Shims and the guard import this, and start in milliseconds: so it imports built-in
modules and one small shared object, and neither ctypes nor signal.
"""

import _ctypes
import _signal  # type: ignore[import-not-found]  # typeshed has signal only
import fcntl
import os
import sys
from _collections_abc import Iterable, Mapping  # os has imported it

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
MPOL_BIND = 2
IN_CREATE = 0x100
CLOCK_MONOTONIC = 1
F_SETSIG = 10
# The kernel's struct signalfd_siginfo, and where the sender's pid and user are in it.
SIGINFO_BYTES, SENDER, SENDERS_USER = 128, slice(12, 16), slice(16, 20)
# In the environment of mpirun and shims where Slurm may signal all of their job.
IN_SLURM = "POPRUN_IN_SLURM"
# The process of Slurm's above all others of a step, which signals them all.
SLURM_DAEMON = b"slurmstepd\n"
# By it a Python program that has called poprun passes an interrupt on. A terminal's
# Ctrl-C reaches poprun itself, too, as SIGINT, and counts once.
CALLER_INTERRUPT = int(_signal.SIGRTMIN) + 6
HIGH_DESCRIPTOR = 100
# How long an agent or a guard may be stopped when nothing else continues it.
CONTINUE_S = 1.0
# In the C locale Python sets LC_CTYPE in its own environment to one of these.
PYTHONS_OWN_LOCALES = ("C.UTF-8", "C.utf8", "UTF-8")
# By machine, because no module that starts fast knows the numbers of system calls.
SYS_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "ppc64le": 261, "riscv64": 237}

# The signals that shims and the guard handle: about the ends of their children, and
# signals for poprun, which sends them messages about these.
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

_libc = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # None: this process
_prctl = _ctypes.dlsym(_libc, "prctl")
_syscall = _ctypes.dlsym(_libc, "syscall")
_inotify_init1 = _ctypes.dlsym(_libc, "inotify_init1")
_inotify_add_watch = _ctypes.dlsym(_libc, "inotify_add_watch")
_signalfd = _ctypes.dlsym(_libc, "signalfd")


def without_own_changes(environ: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment as it was given: Python may have added to it.

    Args:
        environ: os.environ.
    """
    # exec accepts no variable without a name, and no program can read one.
    given = {name: value for name, value in environ.items() if name}
    if given.get("LC_CTYPE") in PYTHONS_OWN_LOCALES:
        with open("/proc/self/environ", "rb") as file:
            entries = file.read().split(b"\0")
        del given["LC_CTYPE"]
        for entry in entries:
            name, _, value = entry.partition(b"=")
            if name == b"LC_CTYPE":
                given["LC_CTYPE"] = os.fsdecode(value)
    return given


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


def continue_regularly() -> None:
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
    seconds, nanoseconds = divmod(int(CONTINUE_S * 1e9), 10**9)
    time_span = b"".join(n.to_bytes(8, sys.byteorder) for n in (seconds, nanoseconds))
    _ctypes.call_function(start, (timer, 0, time_span * 2, None))


class _Pointer(_ctypes._SimpleCData):  # type: ignore[type-arg]  # not at run time
    _type_ = "P"


def die_with_pipe(read: int) -> None:
    """Let the kernel kill this process's group when a pipe has no writer any more.

    A parent-death signal is not inherited by children. This reaches all of the group,
    as long as one process has the read end open.
    """
    try:
        # Scripts choose low numbers for their own files.
        number = fcntl.fcntl(read, fcntl.F_DUPFD, HIGH_DESCRIPTOR)
    except OSError:  # the limit of open files is lower
        number = os.dup(read)
        os.set_inheritable(number, True)
    kill_group_with_pipe(number, os.getpgrp())


def kill_group_with_pipe(read: int, group: int) -> None:
    """Let the kernel kill a process group when a pipe has no writer any more.

    It does so as long as one process has the read end open.
    """
    fcntl.fcntl(read, fcntl.F_SETOWN, -group)
    fcntl.fcntl(read, F_SETSIG, _signal.SIGKILL)
    fcntl.fcntl(read, fcntl.F_SETFL, os.O_ASYNC)


def bind_memory(nodes: Iterable[int]) -> bool:
    """Allocate memory on these NUMA nodes only; False if the kernel refuses."""
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
    and the directories by their numbers in the events.
    """
    flags = (os.O_NONBLOCK | os.O_CLOEXEC,)
    descriptor = int(_ctypes.call_function(_inotify_init1, flags))
    watched = {}
    for path in directories:
        arguments = (descriptor, path, IN_CREATE)
        watched[int(_ctypes.call_function(_inotify_add_watch, arguments))] = path
    watched.pop(-1, None)
    return descriptor, watched


def signal_new_files(directories: Iterable[bytes]) -> None:
    """Ask for a SIGIO when a file is made in one of these directories.

    It uses dnotify, for hosts with no inotify instance left: dnotify has no such limit.
    It does not tell the name of the file, and some kernels lack it.
    """
    for path in directories:
        try:
            # It stays open: closing it would end the signals.
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            events = fcntl.DN_CREATE | fcntl.DN_MULTISHOT
            fcntl.fcntl(descriptor, fcntl.F_NOTIFY, events)
        except OSError:
            continue


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


def receive_sigterm() -> int:
    """Block SIGTERM; return the descriptor from which `read_sigterm` reads it."""
    _signal.pthread_sigmask(_signal.SIG_BLOCK, (_signal.SIGTERM,))
    mask = (1 << _signal.SIGTERM - 1).to_bytes(8, sys.byteorder) + bytes(120)
    flags = os.O_NONBLOCK | os.O_CLOEXEC
    return int(_ctypes.call_function(_signalfd, (-1, mask, flags)))


def read_sigterm(descriptor: int, environ: Mapping[str, str]) -> bool:
    """Return whether Slurm has sent the SIGTERM that has come.

    It sends one to all processes of a job that it ends, on all nodes.

    Args:
        environ: os.environ.

    Raises:
        BlockingIOError: None has come.
    """
    information = os.read(descriptor, SIGINFO_BYTES)
    if IN_SLURM not in environ:
        return False
    user = int.from_bytes(information[SENDERS_USER], sys.byteorder)
    if user != os.getuid():
        # Slurm's daemon is root's, and no process of the job is. Its name may not be
        # readable: /proc may show a user's own processes only (hidepid).
        return user == 0
    sender = int.from_bytes(information[SENDER], sys.byteorder)
    try:
        with open(f"/proc/{sender}/comm", "rb") as file:
            return file.read() == SLURM_DAEMON
    except OSError:  # it has ended, which Slurm's daemon does after the job
        return False


def end_wake_up(read: int) -> None:
    """Close the descriptor of `wake_up_on`, and the end that signals are written to."""
    os.close(_signal.set_wakeup_fd(-1))
    os.close(read)


def _nothing(number: int, frame: object) -> None:
    """Stand for a handler: only the byte in the pipe matters."""


def ignored_signals() -> list[int]:
    """Return which signals of a terminal the caller has ignored for this process.

    nohup does so with SIGHUP, a shell without job control with SIGINT and SIGQUIT for
    what it starts in the background.
    """
    terminals = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT, _signal.SIGTSTP)
    return [int(n) for n in terminals if _signal.getsignal(n) == _signal.SIG_IGN]


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
