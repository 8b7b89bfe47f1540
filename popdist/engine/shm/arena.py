"""The memory that the members of one host share, from the first page to the last.

It has no name, so nothing is left when the last of them ends, however it ends.
"""

import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

from popdist.engine.meet import rendezvous
from popdist.engine.meet.messages import Hello, Member
from popdist.engine.meet.roster import Roster
from popdist.engine.shm.heap import HEAP_SPAN, close_mapping, file_of
from popdist.engine.shm.memory_limits import commits_strictly, in_words, memory_left
from popdist.errors import ArenaError, PeerLostError

# Linux 6.3 wants to know that nobody will execute the file; Python has no name yet.
_MFD_NOEXEC_SEAL = 0x8

# To access what a file in memory no longer has would end every member.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

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

    def __init__(self, name: str, rank: int, instances: Sequence[int]) -> None:
        self.name = name
        self.rank = rank
        self.instances = tuple(instances)
        self._undo = ExitStack()
        self._mapped: mmap.mmap | None = None

    def __repr__(self) -> str:
        size = in_words(len(self.memory)) if not self.memory.closed else "closed"
        # Not the name: it may be a secret.
        return f"<Arena: {self.rank} of {len(self.pids)}, {size}>"

    def close(self) -> None:
        """Let go of everything. Arrays that still look into the memory keep it."""
        self._undo.close()

    def make(
        self,
        size: int,
        nbytes: int,
        seldom: tuple[int, int],
        initialise: Initialise,
    ) -> Sequence[int]:
        """Make the memory and the heap, as member 0 does, and return their files."""
        needed = nbytes - (seldom[1] - seldom[0])
        left = memory_left()
        if left is not None and needed > left:
            raise ArenaError(
                f"The instances of this host need {in_words(needed)} of shared memory, "
                f"but the memory cgroup of instance {self.instances[0]} has only "
                f"{in_words(left)} left. "
                "Raise its limit, or start fewer instances on this host."
            )
        fd = self._own(_memfd("popdist-arena"))
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        if commits_strictly():
            _commit(fd, needed, ((0, seldom[0]), (seldom[1], nbytes)))
        self._mapped = self._map(fd)
        initialise(self._mapped)
        heap_fd = self._own(_memfd("popdist-heap"))
        # A limit on the size of files may forbid it, and the heap can do without.
        with suppress(OSError):
            os.ftruncate(heap_fd, size * HEAP_SPAN)
        fcntl.fcntl(heap_fd, fcntl.F_ADD_SEALS, _SEALS)
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
            -1 if rank == self.rank else self._own(_watch(self.instances[rank], member))
            for rank, member in enumerate(members)
        )

    def watching(self) -> dict[int, int]:
        """Return the pidfd of each other member, by rank, that is still one.

        The program may have closed it, and given its number to another file.
        """
        found = enumerate(zip(self.pidfds, self.pids, strict=True))
        return {rank: fd for rank, (fd, pid) in found if _is_pidfd_of(fd, pid)}

    def _own(self, fd: int) -> int:
        self._undo.callback(_close, fd, file_of(fd))
        return fd

    def _map(self, fd: int) -> mmap.mmap:
        memory = mmap.mmap(fd, 0)
        memory.madvise(mmap.MADV_DONTDUMP)
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
    seldom: tuple[int, int] = (0, 0),
    timeout: float,
    stall: float,
    instances: Sequence[int] | None = None,
    known: Mapping[int, int] | None = None,
    ended_file: str = "",
) -> Arena:
    """Meet the other members of this host, and return the memory they share.

    All `size` processes call this with the same name, each with a rank of its own.
    It returns when all have come and have the memory, or raises on all of them.

    Args:
        initialise: Fills the memory in, on member 0, before anybody else has it.
        seldom: From where to where the memory is of no use to most programs. It need
            not be there before somebody touches it.
        layout: Says how the memory is to be read and what else must be the same
            everywhere; printable text is shown when members do not agree.
        timeout: After how many seconds to give up.
        stall: After how many seconds to say on stderr who has not come.
        instances: What the members are called, by rank; None for their ranks.
        known: A pidfd of each instance that is known before the meeting. The end of
            one of these is noticed at once, even if it never comes.
        ended_file: Where the launcher writes which instances have ended; see Roster.

    Raises:
        ArenaError: The memory cannot be made or mapped.
        MismatchError: The members do not belong together.
        PeerLostError: A member ended or gave up meanwhile.
        CollectiveTimeoutError: Some have not come.
    """
    me = Member(pid=os.getpid(), started=started(os.getpid()))
    hello = Hello(rank=rank, size=size, member=me, layout=layout)
    arena = Arena(name, rank, range(size) if instances is None else instances)
    offer = partial(arena.make, size, nbytes, seldom, initialise)
    try:
        if size == 1:
            arena.attach(offer(), [me])
            return arena
        with _roster(arena, known or {}, ended_file) as roster:
            rendezvous(
                name,
                hello,
                roster,
                offer=offer,
                attach=arena.attach,
                timeout=timeout,
                stall=stall,
            )
    except OSError as error:
        arena.close()
        raise ArenaError(
            f"Instance {arena.instances[rank]} could not share memory with the "
            f"others: {error}."
        ) from error
    except BaseException:
        arena.close()
        raise
    return arena


@contextmanager
def _roster(
    arena: Arena, known: Mapping[int, int], ended_file: str
) -> Iterator[Roster]:
    """Yield whom to meet, with the pidfds that are known."""
    pidfds = [-1] * len(arena.instances)
    with ExitStack() as meanwhile:
        for rank, instance in enumerate(arena.instances):
            if instance in known and rank != arena.rank:
                # Another thread may close the group that they are of.
                pidfds[rank] = os.dup(known[instance])
                meanwhile.callback(os.close, pidfds[rank])
        yield Roster(arena.instances, pidfds, ended_file)


def started(pid: int) -> int:
    """Return when a process was started, in ticks since the machine was.

    Raises:
        ProcessLookupError: There is no such process.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except FileNotFoundError as error:
        if not os.path.exists("/proc/self/stat"):
            raise ArenaError(
                "/proc is not mounted here, but popdist sees in it whether the other "
                "instances live. Mount it: mount -t proc proc /proc."
            ) from error
        raise ProcessLookupError(f"There is no process {pid}.") from error
    # The second field is the program's name in parentheses, and may hold anything.
    return int(stat[stat.rindex(b")") + 2 :].split()[19])


def _watch(instance: int, member: Member) -> int:
    """Return a pidfd of the member, and not of one that has its number now."""
    try:
        # In this order: what the pidfd names can no longer change its number.
        pidfd = _pidfd(member.pid)
        try:
            same = started(member.pid) == member.started
            # The clock of another time namespace shows another time.
            same = same or _other_clock(member.pid)
        except BaseException:
            os.close(pidfd)
            raise
        if same:
            return pidfd
        os.close(pidfd)
    except ProcessLookupError:
        pass
    raise PeerLostError(
        f"Instance {instance} (process {member.pid}) ended or gave up while the "
        "instances met. Look above for what it said last.",
        (instance,),
    )


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        raise ArenaError(
            f"The kernel refuses pidfd_open ({error.strerror}), by which popdist sees "
            "whether the other instances live. Allow it in the seccomp profile of the "
            "container, or use Linux 5.3 or newer."
        ) from error


def _other_clock(pid: int) -> bool:
    """Return whether a process is known to be in another time namespace."""
    try:
        return os.readlink(f"/proc/{pid}/ns/time") != os.readlink("/proc/self/ns/time")
    except OSError:
        # A kernel without them, or a process that may not be looked at.
        return False


def _is_pidfd_of(fd: int, pid: int) -> bool:
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
    except OSError:
        return False
    # 0 where the process cannot be seen from here, -1 where it has ended.
    return fields.get("Pid", "").strip() in (str(pid), "0", "-1")


def _commit(fd: int, needed: int, parts: Iterable[tuple[int, int]]) -> None:
    """Have the kernel set these parts of a file aside, from begin to end.

    Where it counts every page, one that it refuses at first touch ends the process.
    """
    try:
        for begin, end in parts:
            if begin < end:
                os.posix_fallocate(fd, begin, end - begin)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.ENOMEM):
            raise
        raise ArenaError(
            f"The instances of this host need {in_words(needed)} of shared memory, but "
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
