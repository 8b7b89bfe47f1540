"""The memory that the members of one host share, from the first page to the last.

It has no name, so nothing is left when the last of them ends, however it ends.
"""

import errno
import fcntl
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import NamedTuple

from popdist.engine import _core
from popdist.engine.failures import cannot_share
from popdist.engine.meet import rendezvous
from popdist.engine.meet.meeting import Meeting
from popdist.engine.meet.messages import Member
from popdist.engine.meet.pidfds import Pidfd, started, watch
from popdist.engine.shm.heap import HEAP_SPAN, file_of
from popdist.engine.shm.memory_limits import commits_strictly, in_units, memory_left
from popdist.errors import ArenaError

# Linux 6.3 asks for this on files that are never executed; Python has no name yet.
_MFD_NOEXEC_SEAL = 0x8

# To access what a file in memory no longer has would end every member.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

# The same name as in popdist/call_records.py, for readers that look for it in /proc.
FILE_NAME = "popdist-arena"

Initialise = Callable[[memoryview], None]


class Memory(NamedTuple):
    """The memory that member 0 makes for the engine.

    seldom: The begin and end of a range that most programs never use. The kernel need
        not provide its pages before they are written.
    initialise: Fills the memory in, before another member has it.
    """

    nbytes: int
    seldom: tuple[int, int]
    initialise: Initialise


class Arena:
    """A sparse file that the members share, with the heap and the engine's memory.

    memory: The memory for the engine, mapped.
    fd: The file. It begins with HEAP_SPAN bytes for every member, for `Heap`; if a
        limit of this machine forbids such long files, it has only the memory.
    pids: The processes of the members, by rank.
    pidfds: A pidfd of each, by rank, readable once the process has ended; -1 for the
        member itself.
    """

    memory: memoryview
    fd: int
    pids: tuple[int, ...]
    pidfds: tuple[int, ...]

    def __init__(self, rank: int, instances: Sequence[int]) -> None:
        self.rank = rank
        self.instances = tuple(instances)
        self._undo = ExitStack()
        self._mapped: memoryview | None = None
        # These keep the pidfds open.
        self._watched: list[Pidfd] = []

    def __repr__(self) -> str:
        size = "closed" if self._mapped is None else in_units(len(self.memory))
        return f"<Arena: {self.rank} of {len(self.pids)}, {size}>"

    def close(self) -> None:
        """Let go of everything. Arrays that still look into the memory keep it."""
        self._undo.close()
        self._mapped, self.memory = None, memoryview(b"")
        self._watched.clear()

    def make(
        self,
        memory: Callable[[Sequence[int]], Memory],
        members: Sequence[Member],
    ) -> int:
        """Make the file, as member 0 does, and return its descriptor."""
        size = len(members)
        nbytes, seldom, initialise = memory([member.pid for member in members])
        needed = nbytes - (seldom[1] - seldom[0])
        left = memory_left()
        if left is not None and needed > left:
            raise ArenaError(
                f"The instances of this host need {in_units(needed)} of shared memory, "
                f"but the memory cgroup of instance {self.instances[0]} has only "
                f"{in_units(left)} left. "
                "Raise its limit, or start fewer instances on this host."
            )
        fd = self._own(_memfd(FILE_NAME))
        os.ftruncate(fd, nbytes)
        # A limit on the size of files may forbid it, and a group can do without.
        with suppress(OSError):
            os.ftruncate(fd, size * HEAP_SPAN + nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        if commits_strictly():
            begin = _begin_of_memory(fd, size)
            ranges = (0, seldom[0]), (seldom[1], nbytes)
            _commit(fd, needed, [(begin + a, begin + b) for a, b in ranges])
        self._mapped = _map(fd, size)
        initialise(self._mapped)
        return fd

    def attach(self, fd: int, members: Sequence[Member]) -> None:
        """Take over what member 0 has made, and watch the others."""
        self.fd = fd
        if self._mapped is None:
            self._own(self.fd)
            self._mapped = _map(self.fd, len(members))
        self.memory = self._mapped
        self.pids = tuple(member.pid for member in members)
        pidfds = []
        for rank, member in enumerate(members):
            pidfds.append(-1)
            if rank != self.rank:
                pidfd = watch(self.instances[rank], member)
                self._watched.append(pidfd)
                pidfds[rank] = pidfd.fileno()
        self.pidfds = tuple(pidfds)

    @property
    def identity(self) -> str:
        """A name that no other arena of these members has."""
        return f"{os.fstat(self.fd).st_ino:x}-{self.pids[0]}"

    def watching(self) -> dict[int, Pidfd]:
        """Return the pidfd of each other instance that the program has not closed."""
        others = [one for one in self.instances if one != self.instances[self.rank]]
        watched = zip(others, self._watched, strict=True)
        return {instance: pidfd for instance, pidfd in watched if pidfd.is_open}

    def _own(self, fd: int) -> int:
        self._undo.callback(_close, fd, file_of(fd))
        return fd


def share_arena(
    meeting: Meeting, memory: Callable[[Sequence[int]], Memory], layout: str
) -> Arena:
    """Meet the other members of this host, and return the memory they share.

    It returns when all have come and have the memory, or raises on all of them.

    Args:
        memory: Returns which memory to make for members with these process ids; called
            on member 0, once all have come.
        layout: Describes how the memory is read and what else must be the same
            on all members; it is shown when members do not agree.

    Raises:
        ArenaError: The memory cannot be made or mapped.
        MismatchError: The members do not belong together.
        PeerLostError: A member ended or gave up meanwhile.
        CollectiveTimeoutError: Some have not come.
    """
    arena = Arena(meeting.rank, meeting.instances)
    offer = partial(arena.make, memory)
    try:
        if meeting.size == 1:
            me = Member(os.getpid(), started(os.getpid()))
            arena.attach(offer([me]), [me])
        else:
            rendezvous(meeting, layout, offer=offer, attach=arena.attach)
    except OSError as error:
        arena.close()
        raise cannot_share(meeting.own_name, error) from error
    except BaseException:
        arena.close()
        raise
    return arena


def _begin_of_memory(fd: int, size: int) -> int:
    """Return where the engine's memory begins in the file: behind the heap, if any."""
    heap = size * HEAP_SPAN
    return heap if os.fstat(fd).st_size > heap else 0


def _map(fd: int, size: int) -> memoryview:
    begin = _begin_of_memory(fd, size)
    length = os.fstat(fd).st_size - begin
    return memoryview(_core.Mapping(fd, begin, length, accessible=True))


def _commit(fd: int, needed: int, ranges: Iterable[tuple[int, int]]) -> None:
    """Have the kernel set these ranges of a file aside, from begin to end.

    Where the kernel counts every page, the first access to a page kills the process if
    no page is left.
    """
    try:
        for begin, end in ranges:
            if begin < end:
                os.posix_fallocate(fd, begin, end - begin)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.ENOMEM):
            raise
        raise ArenaError(
            f"The instances of this host need {in_units(needed)} of shared memory, but "
            f"the kernel grants no more ({error.strerror}), as vm.overcommit_memory is "
            "2 here. Raise vm.overcommit_ratio, add swap, or start fewer instances on "
            "this host."
        ) from error


def _close(fd: int, file: tuple[int, int] | None) -> None:
    """Close a file, unless the program has done so and has another one there now."""
    if file is not None and file_of(fd) == file:
        os.close(fd)


def _memfd(name: str) -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return os.memfd_create(name, flags)
        if error.errno not in (errno.EPERM, errno.ENOSYS):
            raise
        raise ArenaError(
            f"The kernel refuses memfd_create ({error.strerror}), by which popdist "
            "makes the memory that instances share. Allow it in the seccomp profile of "
            "the container."
        ) from error
