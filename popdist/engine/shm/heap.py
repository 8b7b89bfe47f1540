"""Memory for a member's arrays, visible to all members.

Every member owns one region of a sparse file in memory, and maps the regions of all.
Pages exist only where something is allocated. The rest of the mapping cannot be
accessed, so that mlockall() does not make the kernel fill the whole file.
"""

import mmap
import os
import threading
from bisect import bisect_left

import numpy as np

from popdist.engine import _core
from popdist.engine.shm.memory_limits import in_units, memory_left
from popdist.errors import ArenaError

# How far the region of one member reaches. Only addresses are spent on it.
HEAP_SPAN = 1 << 36

_HUGE = 2 << 20
# So many bytes get pages at a time: at a signal, the kernel drops what it has made.
_PAGES_BYTES = 64 << 20


class Heap:
    """The region of this member: arrays come and go in it.

    Any thread may call it. `free` may also be called by the garbage collector, at
    any moment, even in the middle of `allocate`.
    """

    def __init__(self, fd: int, rank: int, size: int) -> None:
        """Make a heap in a file that begins with the regions of all members."""
        self._fd = fd
        self._file = file_of(fd)
        self._pid = os.getpid()
        self._begin = rank * HEAP_SPAN
        self._length = size * HEAP_SPAN
        # The regions of all members, while anything here needs them.
        self._span: memoryview | None = None
        self._address = 0
        # How much of the own region, from its begin, can be accessed.
        self._accessible = 0
        self._refused = False
        self._lock = threading.Lock()
        # The free ranges (begin, end): sorted, none empty, no two adjacent.
        self._free: list[tuple[int, int]] = [(0, HEAP_SPAN)]
        self._taken: dict[int, int] = {}
        # Offsets of freed allocations that are not yet in the list of free ranges.
        self._returned: list[tuple[int, int]] = []

    @property
    def available(self) -> bool:
        """Whether the kernel lets this process map the regions; the first use asks."""
        return self._map() is not None

    @property
    def memory(self) -> memoryview:
        """The regions of all members. Region r begins at r * HEAP_SPAN.

        Only this member's allocations can be accessed, and ranges that the core has
        made accessible: arrays of other members, when it reduces them.
        """
        span = self._map()
        if span is None:
            raise ArenaError(
                f"The kernel does not let this process map {in_units(self._length)} "
                "of addresses for shared arrays. Raise its limit of address space "
                "(ulimit -v), or use arrays in ordinary memory."
            )
        return span

    def allocate(self, nbytes: int) -> tuple[int, memoryview]:
        """Return the offset in this member's region, and zeroed memory that is there.

        Raises:
            MemoryError: There is no memory left. Nothing was taken.
            ArenaError: The heap is not available.
        """
        view = self.memory
        length = _whole_pages(nbytes)
        with self._lock:
            self._settle()
            begin = self._find(length)
            try:
                self._commit(begin, length)
                self._make_accessible(begin + length)
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
        """Release the memory. Arrays that still use it keep it mapped."""
        with self._lock:
            self._span = None
            self._refused = True

    def _map(self) -> memoryview | None:
        with self._lock:
            if self._span is None and not self._refused:
                self._check_file()
                if os.fstat(self._fd).st_size < self._length:
                    # The file could not be made so long.
                    self._refused = True
                    return None
                try:
                    mapping = _core.Mapping(self._fd, 0, self._length, accessible=False)
                except OSError:
                    # No address space.
                    self._refused = True
                    return None
                self._span = memoryview(mapping)
                self._address = address_of(self._span)
            return self._span

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
            f"An array of {in_units(length)} does not fit into what is free of the "
            f"{in_units(HEAP_SPAN)} that an instance can share. Free arrays, or use "
            "ordinary memory."
        )

    def _commit(self, begin: int, length: int) -> None:
        left = memory_left()
        if left is not None and length > left:
            # The kernel would end a process instead of refusing.
            raise MemoryError(
                f"An array of {in_units(length)} cannot be shared: the memory cgroup "
                f"of this process has only {in_units(left)} left. Raise its limit, "
                "or free memory."
            )
        self._check_file()
        try:
            for at in range(begin, begin + length, _PAGES_BYTES):
                some = min(_PAGES_BYTES, begin + length - at)
                os.posix_fallocate(self._fd, self._begin + at, some)
        except OSError as error:
            raise MemoryError(
                f"An array of {in_units(length)} cannot be shared: {error.strerror}. "
                "Free memory, or use fewer instances."
            ) from error

    def _check_file(self) -> None:
        """Check that the program has not closed the descriptor of the heap's file."""
        if self._file is None or file_of(self._fd) != self._file:
            raise ArenaError(
                f"The program has closed file descriptor {self._fd}, which the group "
                "needs to share arrays, as os.closerange(3, ...) does. Close files "
                "before popdist.init(), or only those that the program has opened."
            )

    def _make_accessible(self, end: int) -> None:
        if self._span is not None and end > self._accessible:
            end = min(_round_up(end, _HUGE), HEAP_SPAN)
            _core.make_accessible(self._address + self._begin, end)
            self._accessible = end

    def _settle_if_idle(self) -> None:
        """Settle, or leave it to the thread that holds the lock: it checks again."""
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
        if self._span is not None:
            _core.remove_pages(self._address + self._begin + begin, length)
        i = bisect_left(self._free, (begin, end))
        if i < len(self._free) and self._free[i][0] == end:
            end = self._free.pop(i)[1]
        if i > 0 and self._free[i - 1][1] == begin:
            i -= 1
            begin = self._free.pop(i)[0]
        self._free.insert(i, (begin, end))


def file_of(fd: int) -> tuple[int, int] | None:
    """Return the device and inode of a descriptor's file, None if it is not open."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def address_of(memory: memoryview) -> int:
    """Return where memory begins."""
    return int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])


def _whole_pages(nbytes: int) -> int:
    return _round_up(max(nbytes, 1), mmap.PAGESIZE)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
