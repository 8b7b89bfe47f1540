"""Memory that a member hands out to its arrays and that all members can see.

Every member owns one region of a sparse file in memory, and maps the regions of all.
Pages exist only where something is allocated.
"""

import mmap
import os
import threading
from bisect import bisect_left

from popdist.engine.memory import in_words, memory_left
from popdist.errors import ArenaError

# How far the region of one member reaches. Only addresses are spent on it.
HEAP_SPAN = 1 << 36

_HUGE = 2 << 20
# What mmap() calls "promise no memory"; Python has no name for it before 3.13.
_MAP_NORESERVE = 0x4000
# Pages are made in pieces, because a signal makes the kernel throw a piece away.
_PIECE = 64 << 20


class Heap:
    """The region of this member: arrays come and go in it.

    Any thread may call it. `free` may also be called by the garbage collector, at
    any moment, even in the middle of `allocate`.
    """

    def __init__(self, heap_fd: int, rank: int, size: int) -> None:
        self._fd = heap_fd
        self._pid = os.getpid()
        self._begin = rank * HEAP_SPAN
        self._length = size * HEAP_SPAN
        self._memory: mmap.mmap | None = None
        self._refused = False
        self._lock = threading.Lock()
        # What is free, as (begin, end): sorted, never empty, never touching.
        self._free: list[tuple[int, int]] = [(0, HEAP_SPAN)]
        self._taken: dict[int, int] = {}
        # What was given back and is not yet in the list of what is free.
        self._returned: list[tuple[int, int]] = []

    @property
    def available(self) -> bool:
        """Whether the kernel lets this process map the regions; the first use asks."""
        return self._map() is not None

    @property
    def memory(self) -> mmap.mmap:
        """The regions of all members. Region r begins at r * HEAP_SPAN."""
        memory = self._map()
        if memory is None:
            raise ArenaError(
                f"The kernel does not let this process map {in_words(self._length)} "
                "of addresses for shared arrays. Raise its limit of address space "
                "(ulimit -v), or use arrays in ordinary memory."
            )
        return memory

    def allocate(self, nbytes: int) -> tuple[int, memoryview]:
        """Return the offset in this member's region, and zeroed memory that is there.

        Raises:
            MemoryError: There is no memory left. Nothing was taken.
            ArenaError: The heap is not available.
        """
        view = memoryview(self.memory)
        length = _whole_pages(nbytes)
        with self._lock:
            self._settle()
            begin = self._find(length)
            try:
                self._commit(begin, length)
            except BaseException:
                self._give_back(begin, length)
                raise
            self._taken[begin] = nbytes
        self._settle_if_idle()
        first = self._begin + begin
        return begin, view[first : first + nbytes]

    def free(self, offset: int, nbytes: int) -> None:
        """Give back what `allocate` returned. No member may look at it any more.

        In a forked child nothing happens: the memory is its parent's.
        """
        if os.getpid() != self._pid:
            return
        if self._taken.get(offset) != nbytes:
            raise ValueError(
                f"No {nbytes} bytes are allocated at offset {offset}. Free what "
                "allocate() returned, and only once."
            )
        del self._taken[offset]
        self._returned.append((offset, _whole_pages(nbytes)))
        self._settle_if_idle()

    def close(self) -> None:
        """Let go of the memory. What still looks into it keeps it."""
        with self._lock:
            memory, self._memory = self._memory, None
            self._refused = True
        if memory is not None:
            close_mapping(memory)

    def _map(self) -> mmap.mmap | None:
        with self._lock:
            if self._memory is None and not self._refused:
                flags = mmap.MAP_SHARED | _MAP_NORESERVE
                try:
                    self._memory = mmap.mmap(self._fd, self._length, flags)
                except (OSError, ValueError):
                    # No address space, or the file could not be made so long.
                    self._refused = True
            return self._memory

    def _find(self, length: int) -> int:
        """Take the first place that is large enough."""
        alignment = _HUGE if length >= _HUGE else mmap.PAGESIZE
        for i, (begin, end) in enumerate(self._free):
            first = _round_up(begin, alignment)
            if first + length <= end:
                rest = [(begin, first), (first + length, end)]
                self._free[i : i + 1] = [(a, b) for a, b in rest if a < b]
                return first
        raise MemoryError(
            f"An array of {in_words(length)} does not fit into what is free of the "
            f"{in_words(HEAP_SPAN)} that an instance can share. Free arrays, or use "
            "ordinary memory."
        )

    def _commit(self, begin: int, length: int) -> None:
        left = memory_left()
        if left is not None and length > left:
            # The kernel would end a process instead of refusing.
            raise MemoryError(
                f"An array of {in_words(length)} cannot be shared: the memory cgroup "
                f"of this process has only {in_words(left)} left. Raise its limit, "
                "or free memory."
            )
        try:
            for at in range(begin, begin + length, _PIECE):
                piece = min(_PIECE, begin + length - at)
                os.posix_fallocate(self._fd, self._begin + at, piece)
        except OSError as error:
            raise MemoryError(
                f"An array of {in_words(length)} cannot be shared: {error.strerror}. "
                "Free memory, or use fewer instances."
            ) from error

    def _settle_if_idle(self) -> None:
        """Settle, or leave it to the one who holds the lock: it asks again after."""
        while self._returned and self._lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._lock.release()

    def _settle(self) -> None:
        while self._returned:
            self._give_back(*self._returned.pop())

    def _give_back(self, begin: int, length: int) -> None:
        end = begin + length
        if self._memory is not None:
            self._memory.madvise(mmap.MADV_REMOVE, self._begin + begin, length)
        i = bisect_left(self._free, (begin, end))
        if i < len(self._free) and self._free[i][0] == end:
            end = self._free.pop(i)[1]
        if i > 0 and self._free[i - 1][1] == begin:
            i -= 1
            begin = self._free.pop(i)[0]
        self._free.insert(i, (begin, end))


def close_mapping(memory: mmap.mmap) -> None:
    """Unmap memory, now or when the last one who looks into it has gone."""
    try:
        memory.close()
    except BufferError:
        # Somebody does. The mapping ends with the last of them.
        return


def _whole_pages(nbytes: int) -> int:
    return _round_up(max(nbytes, 1), mmap.PAGESIZE)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
