"""Pidfds of other processes: one for each, which all groups of this process share."""

import errno
import os
import signal
import weakref

from popdist.engine.meet.messages import Member
from popdist.errors import ArenaError, PeerLostError

# Fields of /proc/PID/stat, counted from the third one: see proc(5).
_STATE, _THREADS, _STARTED = 0, 17, 19


class Pidfd:
    """A pidfd of a process, which is closed with the last reference to this."""

    def __init__(self, pid: int, fd: int) -> None:
        self.pid = pid
        self._fd = fd
        self._end = weakref.finalize(self, _close, fd, pid)
        self._end.atexit = False
        # Read after the pidfd was opened, so the pid cannot have been reused before.
        self.started = started(pid)

    def fileno(self) -> int:
        """Return the file descriptor, which turns readable when the process ends."""
        return self._fd

    @property
    def is_open(self) -> bool:
        """Whether it is one still: the program may close any file descriptor."""
        return _is_pidfd_of(self._fd, self.pid)

    @property
    def is_of_a_live_process(self) -> bool:
        """Whether the descriptor is a pidfd of a process that lives.

        It need not be the same process: the core checks that before it reports an end,
        because a look into /proc here would take a hundred times as long.
        """
        try:
            signal.pidfd_send_signal(self._fd, 0)
        except OSError:
            return False
        return True

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended, by /proc.

        poll() is not reliable: the program may have closed the descriptor, and opened
        another file under its number.
        """
        try:
            fields = _stat_of(self.pid)
        except ProcessLookupError:
            return True
        # A main thread that has ended is a zombie as well; the others go on.
        is_over = fields[_STATE] in (b"Z", b"X") and int(fields[_THREADS]) <= 1
        return is_over or int(fields[_STARTED]) != self.started

    def abandon(self) -> None:
        """Leave the descriptor open at the end: the program has closed this one."""
        self._end.detach()


_shared: "weakref.WeakValueDictionary[Member, Pidfd]" = weakref.WeakValueDictionary()


def watch(instance: int, member: Member) -> Pidfd:
    """Return the pidfd of a member's process, and not of one that has its pid now.

    Raises:
        PeerLostError: The process has ended.
    """
    pidfd = _shared.get(member)
    if pidfd is not None and pidfd.is_of_a_live_process:
        return pidfd
    if pidfd is not None and not pidfd.is_open:
        # The new one may get its number.
        pidfd.abandon()
    try:
        pidfd = Pidfd(member.pid, _open(member.pid))
    except ProcessLookupError:
        raise lost(instance, member.pid) from None
    # The clock of another time namespace shows another time.
    if pidfd.started != member.started and not _other_clock(member.pid):
        raise lost(instance, member.pid)
    _shared[member] = pidfd
    return pidfd


def process_of(pidfd: int) -> int | None:
    """Return the pid of a pidfd's process, None if the descriptor is no pidfd.

    0 if the process cannot be seen from here, -1 if it has ended.
    """
    try:
        with open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
    except OSError:
        return None
    return int(fields["Pid"]) if "Pid" in fields else None


def started(pid: int) -> int:
    """Return when a process was started, in ticks since the machine was.

    Raises:
        ProcessLookupError: There is no such process.
    """
    return int(_stat_of(pid)[_STARTED])


def _stat_of(pid: int) -> list[bytes]:
    """Return what /proc/PID/stat has, from the third field on.

    Raises:
        ProcessLookupError: There is no such process.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except FileNotFoundError as error:
        if not os.path.exists("/proc/self/stat"):
            raise ArenaError(
                "/proc is not mounted here, but popdist reads it to see whether the "
                "other instances are alive. Mount it: mount -t proc proc /proc."
            ) from error
        raise ProcessLookupError(f"There is no process {pid}.") from error
    # The second field is the program's name in parentheses, and may hold anything.
    return stat[stat.rindex(b")") + 2 :].split()


def lost(instance: int, pid: int | None = None) -> PeerLostError:
    """Return the error for a member that ends while the instances meet.

    Args:
        pid: Its process, if that is known here.
    """
    process = "" if pid is None else f" (process {pid})"
    return PeerLostError(
        f"Instance {instance}{process} ended or gave up while the instances met. Look "
        "above for its last output.",
        (instance,),
    )


def _open(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        raise ArenaError(
            f"The kernel refuses pidfd_open ({error.strerror}), by which popdist sees "
            "whether the other instances are alive. Allow it in the seccomp profile "
            "of the container, or use Linux 5.3 or newer."
        ) from error


def _other_clock(pid: int) -> bool:
    """Return whether a process is known to be in another time namespace."""
    try:
        return os.readlink(f"/proc/{pid}/ns/time") != os.readlink("/proc/self/ns/time")
    except OSError:
        # A kernel without them, or a process that may not be looked at.
        return False


def _is_pidfd_of(fd: int, pid: int) -> bool:
    return process_of(fd) in (pid, 0, -1)


def _close(fd: int, pid: int) -> None:
    """Close a pidfd, unless the program has done so and has another file there."""
    if _is_pidfd_of(fd, pid):
        os.close(fd)
