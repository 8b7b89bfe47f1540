"""What a job leaves on disk and in shared memory: its own, and never a neighbour's.

Most of it lies below directories that were made for this job alone. The rest lies
where everybody's files are, under names that do not tell whose: such a file is the
job's if a process of the job has it open. Processes are killed without a warning, so
that is looked up when the file is made and not when it is to be removed.
"""

import fcntl
import os
import stat
import sys
import time
from _collections_abc import Iterable, Iterator  # os has imported it already

from poprun.helpers import processes

# The kernel tells of a file an instant before its maker has it open.
PATIENCE_S = 0.1
# Two numbers of 4 bytes, one that is not needed, and the length of the name.
_EVENT = 16


class Leftovers:
    """The files and directories to remove at the end of one job."""

    def __init__(self) -> None:
        self.paths: list[bytes] = []
        # Readable when files have been made; -1 before `watch`, and where the kernel
        # has no watch left to give. Then `doubt_all` is all that can be done.
        self.descriptor = -1
        self._prefixes: tuple[bytes, ...] = ()
        self._directories: dict[int, bytes] = {}
        self._doubtful: dict[bytes, float] = {}

    def watch(self, prefixes: Iterable[bytes]) -> None:
        """Notice from now on when a file is made whose path begins like this."""
        self._prefixes = tuple(prefixes)
        places = sorted({os.path.dirname(prefix) for prefix in self._prefixes})
        self.descriptor, self._directories = processes.watch(places)
        self.doubt_all()

    def notice(self) -> None:
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
                self._doubt(os.path.join(self._directories[number], name))
            else:  # there were more than the kernel keeps
                self.doubt_all()

    def doubt_all(self) -> None:
        """Ask of every file that is there now whose it is."""
        for directory in {os.path.dirname(prefix) for prefix in self._prefixes}:
            try:
                names = os.listdir(directory)
            except OSError:
                continue
            for name in names:
                self._doubt(os.path.join(directory, name))

    def _doubt(self, path: bytes) -> None:
        if path.startswith(self._prefixes) and path not in self.paths:
            self._doubtful[path] = time.monotonic() + PATIENCE_S

    @property
    def in_doubt(self) -> bool:
        """Whether it is to be looked up whose some files are, again if need be."""
        return bool(self._doubtful)

    def claim(self, pids: Iterable[int]) -> list[bytes]:
        """Return the files that these processes turn out to have open."""
        opened = {path for pid in pids for path in _open_files(pid)}
        found = [path for path in self._doubtful if path in opened]
        self.paths += found
        now = time.monotonic()
        self._doubtful = {
            path: limit
            for path, limit in self._doubtful.items()
            if path not in found and now < limit
        }
        return found


def _open_files(pid: int) -> Iterator[bytes]:
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


def remove(paths: Iterable[bytes]) -> None:
    """Remove files, and directories with all that is in them."""
    for path in paths:
        _remove(path)


def _remove(path: bytes) -> None:
    # Links are removed and never followed. What cannot be removed stays: at the end
    # of a job there is nobody to tell, and the guard must go on to the next.
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            with os.scandir(path) as entries:
                inside = [entry.path for entry in entries]
            for entry in inside:
                _remove(entry)
            os.rmdir(path)
        else:
            os.unlink(path)
    except OSError:
        return


# --- The files of jobs whose supervisors have all died.

# In a job's directory: what is to be removed with it, each path with a zero byte. As
# long as they live poprun, its guard and its shims hold a shared lock on it.
LOCK = b"supervisors"


def make_lock(directory: bytes, paths: Iterable[bytes]) -> int:
    """Make the lock file of a job, and return it, held and open."""
    # It appears under its name when it is whole and held.
    made = os.path.join(directory, b"new-" + LOCK)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    lock = os.open(made, flags, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    os.write(lock, b"".join(path + b"\0" for path in paths))
    os.rename(made, os.path.join(directory, LOCK))
    return lock


def hold(lock: bytes) -> int:
    """Hold the lock of a job as long as this process lives; -1 if it is gone."""
    try:
        held = os.open(lock, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return -1
    return held


def remove_if_last(lock: bytes) -> bool:
    """Remove the files of a job if no supervisor of it lives; returns whether so."""
    directory = os.path.dirname(lock)
    try:
        # Others may make files in /tmp, and links, under any name.
        found = os.lstat(directory)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return False
        own = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # they have been removed
        return False
    try:
        fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
        paths = os.pread(own, 1 << 20, 0).split(b"\0")
    except OSError:  # a supervisor lives
        return False
    finally:
        os.close(own)
    # The directory with the lock last: what is left when this is killed has a lock.
    remove(path for path in paths if path and path != directory)
    remove([directory])
    return True


def remove_by_last(lock: bytes, limit: float) -> None:
    """Remove the files of a job as soon as no supervisor of it lives.

    Waits `limit` seconds at most, and no longer than until another has removed them.
    """
    ends_by = time.monotonic() + limit
    while not remove_if_last(lock):
        if time.monotonic() > ends_by or not os.path.lexists(lock):
            return
        time.sleep(processes.LOOK_AGAIN_S)


def release(held: int) -> None:
    """Give up the hold on a lock, and keep its file open to write to."""
    fcntl.flock(held, fcntl.LOCK_UN)


def remove_abandoned(places: Iterable[bytes]) -> None:
    """Remove the files of this user's jobs whose supervisors have all died."""
    for place in places:
        try:
            names = os.listdir(place)
        except OSError:
            continue
        for name in names:
            if name.startswith(b"poprun-"):
                remove_if_last(os.path.join(place, name, LOCK))
