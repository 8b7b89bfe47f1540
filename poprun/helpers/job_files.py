"""The files that a job leaves on disk and in shared memory, and its lock file.

Most files are below directories that were made for this job alone. The others are in
directories of all users, and their names do not identify the job: such a file is the
job's if a process of the job has it open. Processes are killed without a warning, so
this is looked up when the file is made and not when it is removed.
"""

import fcntl
import os
import stat
import sys
import time
from _collections_abc import Iterable, Iterator, Mapping  # os has imported it already

from poprun.helpers import own_process, processes
from poprun.helpers.end_actions import EndActions, RemovePath

# The kernel reports a file an instant before the process that makes it has it open, and
# on a busy machine that instant can be long.
OPEN_TIMEOUT_S = 10.0
# How often to look for new files if the kernel may not report them.
_UNWATCHED_LOOK_S = 0.05
# Two numbers of 4 bytes, one that is not needed, and the length of the name.
_EVENT = 16


class Leftovers:
    """The files and directories to remove at the end of one job."""

    def __init__(self) -> None:
        self.paths: list[bytes] = []
        # Readable when files have been created; -1 before `watch`, and if the limit of
        # inotify instances is reached. The kernel then sends SIGIO instead.
        self.descriptor = -1
        self._prefixes: tuple[bytes, ...] = ()
        self._directories: dict[int, bytes] = {}
        # The files that may still prove to be this job's, and when they were found.
        self._unclaimed: dict[bytes, float] = {}
        # The files that no process of the job had open in time.
        self._dismissed: set[bytes] = set()

    def watch(self, prefixes: Iterable[bytes]) -> None:
        """Detect files with these prefixes that are made from now on."""
        self._prefixes = tuple(prefixes)
        places = sorted({os.path.dirname(prefix) for prefix in self._prefixes})
        self.descriptor, self._directories = own_process.watch(places)
        if self.is_unwatched:
            own_process.signal_new_files(places)
        self.check_all()

    def read_events(self) -> None:
        """Take in which files have been made."""
        try:
            data = os.read(self.descriptor, 1 << 16)
        except OSError:
            return
        while data:
            length = int.from_bytes(data[12:_EVENT], sys.byteorder)
            number = int.from_bytes(data[:4], sys.byteorder, signed=True)
            name = data[_EVENT : _EVENT + length].rstrip(b"\0")
            data = data[_EVENT + length :]
            if number in self._directories:
                self._check(os.path.join(self._directories[number], name))
            else:  # there were more than the kernel keeps
                self.check_all()

    def check_all(self, *, again: bool = False) -> None:
        """Check all files that exist now.

        Args:
            again: Also those that no process of the job had open in time. On a busy
                machine the process that makes a file may have it open only later.
        """
        present: set[bytes] = set()
        for directory in {os.path.dirname(prefix) for prefix in self._prefixes}:
            try:
                names = os.listdir(directory)
            except OSError:
                continue
            present.update(os.path.join(directory, name) for name in names)
        self._dismissed = set() if again else self._dismissed & present
        for path in present - self._dismissed - self._unclaimed.keys():
            self._check(path)

    def _check(self, path: bytes) -> None:
        if path.startswith(self._prefixes) and path not in self.paths:
            self._unclaimed[path] = time.monotonic()

    @property
    def is_unwatched(self) -> bool:
        """Whether nothing but `check_all` detects new files."""
        return bool(self._prefixes) and self.descriptor < 0

    @property
    def has_unclaimed(self) -> bool:
        """Whether there are files that may still prove to be this job's."""
        return bool(self._unclaimed)

    def look_again_s(self) -> float | None:
        """Return how long to wait for the next look, None if none is needed.

        The time between looks at an unclaimed file doubles: most are of other jobs.
        """
        waits = [_UNWATCHED_LOOK_S] if self.is_unwatched else []
        if self._unclaimed:
            since_newest = time.monotonic() - max(self._unclaimed.values())
            waits.append(max(processes.LOOK_AGAIN_S, since_newest))
        return min(waits, default=None)

    def claim(self, pids: Iterable[int]) -> list[bytes]:
        """Return the unclaimed files that these processes have open."""
        opened = {path for pid in pids for path in open_files(pid)}
        claimed = [path for path in self._unclaimed if path in opened]
        self.paths += claimed
        now = time.monotonic()
        for path, found_at in list(self._unclaimed.items()):
            if path in opened:
                del self._unclaimed[path]
            elif now >= found_at + OPEN_TIMEOUT_S:
                del self._unclaimed[path]
                self._dismissed.add(path)
        return claimed


def open_files(pid: int) -> Iterator[bytes]:
    """Yield the paths of what a process has open."""
    directory = b"/proc/%d/fd" % pid
    try:
        names = os.listdir(directory)
    except OSError:  # it has ended
        return
    for name in names:
        try:
            yield os.readlink(os.path.join(directory, name))
        except OSError:  # it has closed that one
            continue


# --- The files of a job after the end of its supervisors.

# The lock file in a job's directory. It has the job's end actions, as EndActions packs
# them. poprun, its guard and its shims hold a shared lock on it until they end.
LOCK = b"supervisors"
# How the names of jobs' directories begin.
PREFIX = b"poprun-"


def make_lock(directory: bytes, end_actions: EndActions) -> int:
    """Make the lock file of a job, and return it, held and open to append to."""
    # It appears under its name when it is whole and held.
    unfinished = os.path.join(directory, b"new-" + LOCK)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    lock = os.open(unfinished, flags, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    append(lock, end_actions.pack())
    os.rename(unfinished, os.path.join(directory, LOCK))
    return lock


def append(lock: int, messages: bytes) -> None:
    """Append messages to a lock file, if there is one (-1), and the disk has room.

    poprun and its guard know them in any case.
    """
    try:
        os.write(lock, messages)
    except OSError:
        return


def hold(lock: bytes) -> int:
    """Hold the lock of a job as long as this process lives; -1 if it is gone."""
    try:
        descriptor = os.open(
            lock, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        )
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return -1
    return descriptor


def undo_if_last(lock: bytes, *, is_final: bool = True) -> list[str] | None:
    """Perform the end actions of a job if no supervisor of it lives.

    Returns a sentence for each failure, or None if nothing was performed.

    Args:
        is_final: False to keep the lock file if something fails, for another attempt.
    """
    directory = os.path.dirname(lock)
    if not is_own_directory(directory):
        return None
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # they have been removed
        return None
    try:
        end_actions = EndActions()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            status = os.fstat(descriptor)
            # Another may have performed them since this one opened the file.
            if not status.st_nlink or not _is_own(status, stat.S_IFREG):
                return None
            end_actions.read(os.pread(descriptor, status.st_size, 0))
        except OSError:  # a supervisor lives
            return None
        # The directory with the lock last: if this process is killed, the lock stays
        # with the other files.
        directory_removal = RemovePath(directory)
        end_actions.withdraw(directory_removal)
        failures = end_actions.perform()
        if is_final or not failures:
            failures.append(directory_removal.perform())
        return [failure for failure in failures if failure]
    finally:
        os.close(descriptor)


def _is_own(status: os.stat_result, kind: int) -> bool:
    """Return whether a file has a kind, and no other user can have written it."""
    is_private = not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    is_kind = stat.S_IFMT(status.st_mode) == kind
    return is_kind and is_private and status.st_uid == os.geteuid()


def undo_by_last(lock: bytes, limit: float) -> list[str]:
    """Perform the end actions of a job as soon as no supervisor of it lives.

    Waits `limit` seconds at most, and no longer than until another has performed them.
    Returns a sentence for each failure.
    """
    ends_by = time.monotonic() + limit
    while (failures := undo_if_last(lock, is_final=False)) is None:
        if time.monotonic() > ends_by or not os.path.lexists(lock):
            return []
        time.sleep(processes.LOOK_AGAIN_S)
    return failures


def release(descriptor: int) -> None:
    """Give up the hold on a lock, and keep its file open to write to."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def usual_places(environ: Mapping[bytes, bytes]) -> set[bytes]:
    """Return where jobs of this user make their directories.

    Args:
        environ: os.environb.
    """
    # A job in one of them may have been followed by a job in another.
    return {b"/dev/shm", b"/tmp", environ.get(b"TMPDIR") or b"/tmp"}


def undo_abandoned(places: Iterable[bytes]) -> list[str]:
    """Perform the end actions of this user's jobs that have no supervisor any more.

    Returns a sentence for each failure.
    """
    failures = []
    for directory in job_directories(places):
        failures += undo_if_last(os.path.join(directory, LOCK)) or []
    return failures


def job_directories(places: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the directories of jobs in these places that only this user can write to.

    A job has one as long as it runs; what killed jobs have left is among them.
    """
    for place in places:
        try:
            names = os.listdir(place)
        except OSError:
            continue
        for name in names:
            path = os.path.join(place, name)
            if name.startswith(PREFIX) and is_own_directory(path):
                yield path


def is_own_directory(path: bytes) -> bool:
    """Return whether it is a directory, and no other user can have written in it."""
    # Others may make files in /tmp, and links, under any name.
    try:
        return _is_own(os.lstat(path), stat.S_IFDIR)
    except OSError:  # it has been removed
        return False
