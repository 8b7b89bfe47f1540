"""The memory that the members of one host share, from the first page to the last.

It has no name, so nothing is left when the last of them ends, however it ends.
"""

import errno
import mmap
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

from popdist.engine.heap import HEAP_SPAN, close_mapping
from popdist.engine.memory import in_words, memory_left
from popdist.engine.rendezvous import rendezvous
from popdist.engine.rendezvous.messages import Hello, Member
from popdist.errors import ArenaError, PeerLostError

# Linux 6.3 wants to know that nobody will execute the file; Python has no name yet.
_MFD_NOEXEC_SEAL = 0x8

Initialise = Callable[[mmap.mmap], None]


class Arena:
    """What the members share: memory for the engine, and a file for their arrays.

    memory: The shared memory, mapped.
    heap_fd: A sparse file with HEAP_SPAN bytes for every member, for `Heap`. It has
        no length where a limit of this machine forbids such files.
    pids: The processes of the members, by rank.
    pidfds: A pidfd of each, by rank, which turns readable when it ends; -1 for the
        member itself.
    """

    memory: mmap.mmap
    heap_fd: int
    pids: tuple[int, ...]
    pidfds: tuple[int, ...]

    def __init__(self, name: str, rank: int) -> None:
        self.name = name
        self.rank = rank
        self._undo = ExitStack()
        self._mapped: mmap.mmap | None = None

    def __repr__(self) -> str:
        size = in_words(len(self.memory)) if not self.memory.closed else "closed"
        return f"<Arena {self.name!r}: {self.rank} of {len(self.pids)}, {size}>"

    def close(self) -> None:
        """Let go of everything. Arrays that still look into the memory keep it."""
        self._undo.close()

    def make(self, size: int, nbytes: int, initialise: Initialise) -> Sequence[int]:
        """Make the memory and the heap, as member 0 does, and return their files."""
        left = memory_left()
        if left is not None and nbytes > left:
            raise ArenaError(
                f"The instances of this host need {in_words(nbytes)} of shared memory, "
                f"but the memory cgroup of instance 0 has only {in_words(left)} left. "
                "Raise its limit, or start fewer instances on this host."
            )
        fd = self._own(_memfd("popdist-arena"))
        os.ftruncate(fd, nbytes)
        self._mapped = self._map(fd)
        initialise(self._mapped)
        heap_fd = self._own(_memfd("popdist-heap"))
        # A limit on the size of files may forbid it, and the heap can do without.
        with suppress(OSError):
            os.ftruncate(heap_fd, size * HEAP_SPAN)
        return fd, heap_fd

    def attach(self, fds: Sequence[int], members: Sequence[Member]) -> None:
        """Take over what member 0 has made, and watch the others."""
        memory_fd, self.heap_fd = fds
        if self._mapped is None:
            for fd in fds:
                self._own(fd)
            self._mapped = self._map(memory_fd)
        self.memory = self._mapped
        self.pids = tuple(member.pid for member in members)
        self.pidfds = tuple(
            -1 if rank == self.rank else self._own(_watch(rank, member))
            for rank, member in enumerate(members)
        )

    def _own(self, fd: int) -> int:
        self._undo.callback(os.close, fd)
        return fd

    def _map(self, fd: int) -> mmap.mmap:
        memory = mmap.mmap(fd, 0)
        self._undo.callback(close_mapping, memory)
        return memory


def meet(
    name: str,
    rank: int,
    size: int,
    *,
    nbytes: int,
    initialise: Initialise,
    layout: bytes,
    timeout: float,
    stall: float,
) -> Arena:
    """Meet the other members of this host, and return the memory they share.

    All `size` processes call this with the same name, each with a rank of its own.
    It returns when all have come and have the memory, or raises on all of them.

    Args:
        initialise: Fills the memory in, on member 0, before anybody else has it.
        layout: Says how the memory is to be read and what else must be the same
            everywhere; printable text is shown when members do not agree.
        timeout: After how many seconds to give up.
        stall: After how many seconds to say on stderr who has not come.

    Raises:
        ArenaError: The memory cannot be made or mapped.
        MismatchError: The members do not belong together.
        PeerLostError: A member ended or gave up meanwhile.
        CollectiveTimeoutError: Some have not come.
    """
    me = Member(pid=os.getpid(), started=started(os.getpid()))
    hello = Hello(rank=rank, size=size, member=me, layout=layout)
    arena = Arena(name, rank)
    try:
        if size == 1:
            arena.attach(arena.make(size, nbytes, initialise), [me])
        else:
            rendezvous(
                name,
                hello,
                offer=lambda: arena.make(size, nbytes, initialise),
                attach=arena.attach,
                timeout=timeout,
                stall=stall,
            )
    except OSError as error:
        arena.close()
        raise ArenaError(
            f"Instance {rank} could not share memory with the others: {error}."
        ) from error
    except BaseException:
        arena.close()
        raise
    return arena


def started(pid: int) -> int:
    """Return when a process was started, in ticks since the machine was.

    Raises:
        ProcessLookupError: There is no such process.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except FileNotFoundError as error:
        raise ProcessLookupError(f"There is no process {pid}.") from error
    # The second field is the program's name in parentheses, and may hold anything.
    return int(stat[stat.rindex(b")") + 2 :].split()[19])


def _watch(rank: int, member: Member) -> int:
    """Return a pidfd of the member, and not of one that has its number now."""
    try:
        # In this order: what the pidfd names can no longer change its number.
        pidfd = os.pidfd_open(member.pid)
        try:
            same = started(member.pid) == member.started
        except BaseException:
            os.close(pidfd)
            raise
        if same:
            return pidfd
        os.close(pidfd)
    except ProcessLookupError:
        pass
    raise PeerLostError(
        f"Instance {rank} (process {member.pid}) ended while the instances met. Look "
        "above for what it said last.",
        (rank,),
    )


def _memfd(name: str) -> int:
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(name, os.MFD_CLOEXEC)
