import gc
import mmap
import os
import re
import threading
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
)
from meeting import run

from popdist.engine import _core
from popdist.engine.shm import heap as heap_module
from popdist.engine.shm.heap import HEAP_SPAN, Heap
from popdist.errors import ArenaError

PAGE = mmap.PAGESIZE
HUGE = 2 << 20


def sparse_file(size: int) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC)
    os.ftruncate(fd, size * HEAP_SPAN)
    return fd


def used(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


@pytest.fixture
def file() -> Iterator[int]:
    fd = sparse_file(3)
    yield fd
    os.close(fd)


@pytest.fixture
def heap(file: int) -> Iterator[Heap]:
    heap = Heap(file, 1, 3)
    yield heap
    heap.close()


def test_allocated_memory_is_zeroed_and_in_the_own_region(
    heap: Heap, file: int
) -> None:
    offset, view = heap.allocate(5000)

    assert (offset, len(view), bytes(view)) == (0, 5000, bytes(5000))
    view[:] = b"x" * 5000
    assert heap.memory[HEAP_SPAN : HEAP_SPAN + 5001] == b"x" * 5000 + b"\0"
    assert os.pread(file, 5000, HEAP_SPAN) == b"x" * 5000


def test_members_see_what_another_has_allocated(heap: Heap, file: int) -> None:
    other = Heap(file, 2, 3)
    offset, view = other.allocate(10)
    view[:] = b"0123456789"

    first = 2 * HEAP_SPAN + offset
    everything = np.frombuffer(heap.memory, np.uint8)
    _core.make_accessible(everything[first - offset :].ctypes.data, PAGE)
    assert heap.memory[first : first + 10] == b"0123456789"
    del view
    other.close()


def test_a_core_dump_leaves_it_out(heap: Heap) -> None:
    kept = heap.allocate(HUGE)

    begin = np.frombuffer(heap.memory, np.uint8).ctypes.data
    flags = flags_of_mappings(begin, begin + 3 * HEAP_SPAN)
    assert len(flags) > 1
    assert all("dd" in mapping for mapping in flags)
    assert len(kept[1]) == HUGE


def flags_of_mappings(begin: int, end: int) -> list[list[str]]:
    """Return the flags of what is mapped there, as the kernel abbreviates them."""
    found: list[list[str]] = []
    at = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match("([0-9a-f]+)-[0-9a-f]+ ", line):
            at = int(bounds[1], 16)
        elif line.startswith("VmFlags:") and begin <= at < end:
            found.append(line.split()[1:])
    return found


@pytest.mark.parametrize("moment", ["before", "after"])
def test_locking_all_memory_does_not_fill_it(moment: str) -> None:
    # In a program of its own, which has nothing else to lock, and with regions that
    # are shorter than they are, so that a failure of this test is harmless.
    ended = run(
        1,
        f"""
        import ctypes
        from popdist.engine.shm import heap as module

        def lock():
            both = 3  # MCL_CURRENT | MCL_FUTURE
            if ctypes.CDLL(None).mlockall(both) != 0:
                print("refused")
                sys.exit()

        def used():
            return os.fstat(file).st_blocks * 512

        module.HEAP_SPAN = 32 << 20
        file = os.memfd_create("test")
        os.ftruncate(file, 3 * module.HEAP_SPAN)
        if {moment == "before"}:
            lock()
        heap = module.Heap(file, 1, 3)
        offset, view = heap.allocate(2 << 20)
        if {moment == "after"}:
            lock()
        view[:5] = b"hello"
        held = used()
        heap.free(offset, 2 << 20)
        print(held, used(), bytes(heap.allocate(4096)[1][:5]))
        """,
    )

    if ended == [(0, "refused\n", "")]:
        pytest.skip("This process may not lock its memory.")
    assert ended == [(0, f"{HUGE} 0 {bytes(5)}\n", "")]


def test_memory_is_there_before_it_is_touched(heap: Heap, file: int) -> None:
    kept = heap.allocate(10 * PAGE + 1)

    assert used(file) == 11 * PAGE
    assert len(kept[1]) == 10 * PAGE + 1


def test_small_things_begin_on_pages_and_large_ones_on_huge_pages(heap: Heap) -> None:
    offsets = [heap.allocate(nbytes)[0] for nbytes in (1, HUGE, PAGE, HUGE - PAGE)]

    assert offsets == [0, HUGE, PAGE, 2 * HUGE]


def test_nothing_at_all_has_a_place_of_its_own(heap: Heap) -> None:
    first, second = heap.allocate(0), heap.allocate(0)

    assert [(offset, len(view)) for offset, view in (first, second)] == [
        (0, 0),
        (PAGE, 0),
    ]


def test_freed_memory_has_no_pages_and_is_zero_again(heap: Heap, file: int) -> None:
    offset, view = heap.allocate(3 * HUGE)
    view[:5] = b"hello"
    heap.free(offset, 3 * HUGE)

    assert used(file) == 0
    assert heap.allocate(3 * HUGE)[0] == offset
    assert heap.memory[HEAP_SPAN + offset : HEAP_SPAN + offset + 5] == bytes(5)


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 10), (PAGE, 11), (1, 10)])
def test_memory_that_was_not_allocated_cannot_be_freed(
    heap: Heap, offset: int, nbytes: int
) -> None:
    heap.allocate(11)

    with pytest.raises(ValueError, match=f"No {nbytes} bytes are allocated at offset"):
        heap.free(offset, nbytes)


def test_freeing_twice_is_an_error(heap: Heap) -> None:
    offset, _ = heap.allocate(11)
    heap.free(offset, 11)

    with pytest.raises(ValueError, match="only once"):
        heap.free(offset, 11)


def test_an_allocation_larger_than_a_region_is_refused(heap: Heap, file: int) -> None:
    with pytest.raises(MemoryError) as refusal:
        heap.allocate(HEAP_SPAN + 1)

    assert str(refusal.value) == (
        "An array of 64 GiB does not fit into what is free of the 64 GiB that an "
        "instance can share. Free arrays, or use ordinary memory."
    )
    assert used(file) == 0


def test_an_allocation_beyond_the_cgroups_limit_is_refused(
    heap: Heap, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heap_module, "memory_left", lambda: HUGE)

    with pytest.raises(MemoryError) as refusal:
        heap.allocate(HUGE + 1)
    assert str(refusal.value) == (
        "An array of 2.004 MiB cannot be shared: the memory cgroup of this process has "
        "only 2 MiB left. Raise its limit, or free memory."
    )
    assert used(file) == 0
    assert heap.allocate(HUGE)[0] == 0


def test_an_allocation_that_the_kernel_refuses_halfway_is_given_back(
    heap: Heap, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = os.posix_fallocate

    def refuse(fd: int, offset: int, length: int) -> None:
        if offset >= HEAP_SPAN + 2 * HUGE:
            raise OSError(12, "Cannot allocate memory")
        commit(fd, offset, length)

    monkeypatch.setattr(heap_module, "_PAGES_BYTES", HUGE)
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(MemoryError) as refusal:
        heap.allocate(3 * HUGE)

    assert str(refusal.value) == (
        "An array of 6 MiB cannot be shared: Cannot allocate memory. Free memory, or "
        "use fewer instances."
    )
    assert used(file) == 0
    assert heap.allocate(2 * HUGE)[0] == 0


def test_without_addresses_it_is_not_available() -> None:
    ended = run(
        1,
        """
        from popdist.engine.shm.heap import Heap
        shared = join()
        resource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33))
        heap = Heap(shared.fd, 0, 1)
        print(heap.available)
        heap.allocate(1)
        """,
    )

    refusal = (
        "False\nArenaError: The kernel does not let this process map 64 GiB of "
        "addresses for shared arrays. Raise its limit of address space (ulimit -v), or "
        "use arrays in ordinary memory.\n"
    )
    assert ended == [(0, refusal, "")]


def test_with_a_file_that_is_too_short_it_is_not_available() -> None:
    fd = os.memfd_create("short", os.MFD_CLOEXEC)
    heap = Heap(fd, 0, 1)

    assert not heap.available
    with pytest.raises(ArenaError):
        heap.allocate(1)
    os.close(fd)


@pytest.mark.parametrize("again", [False, True], ids=["closed", "another-file"])
@pytest.mark.parametrize("used_before", [False, True])
def test_a_file_of_the_programs_is_not_taken_for_its_own(
    again: bool, used_before: bool, tmp_path: Path
) -> None:
    own = sparse_file(1)
    heap = Heap(own, 0, 1)
    if used_before:
        heap.allocate(1)
    os.close(own)
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"theirs")
    fd = os.open(theirs, os.O_RDWR)
    if again and fd != own:
        os.dup2(fd, own)
        os.close(fd)
    elif not again and fd == own:
        os.dup2(fd, fd + 1)
        os.close(fd)
    with pytest.raises(ArenaError) as refusal:
        heap.allocate(1)

    assert str(refusal.value) == (
        f"The program has closed file descriptor {own}, which the group needs to share "
        "arrays, as os.closerange(3, ...) does. Close files before popdist.init(), or "
        "only those that the program has opened."
    )
    assert theirs.read_bytes() == b"theirs"
    os.close(own if again else fd + 1 if fd == own else fd)


def test_it_maps_nothing_before_its_first_use(file: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    heap = Heap(file, 0, 3)
    unused = len(os.listdir("/proc/self/fd"))
    available = heap.available

    assert (unused, available) == (before, True)
    heap.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_views_of_the_memory_outlive_the_heap(file: int) -> None:
    heap = Heap(file, 0, 3)
    offset, view = heap.allocate(10)
    heap.close()
    view[:] = b"0123456789"
    heap.free(offset, 10)

    assert bytes(view) == b"0123456789"
    assert not heap.available


def test_the_garbage_collector_may_free_in_the_middle_of_allocate(
    heap: Heap, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Array:
        pass

    array = Array()
    vars(array)["self"] = array  # A cycle, so that only the collector finds it.
    offset, _ = heap.allocate(PAGE)
    weakref.finalize(array, heap.free, offset, PAGE)
    del array
    commit = os.posix_fallocate

    def collect(fd: int, offset: int, length: int) -> None:
        gc.collect()
        commit(fd, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", collect)
    assert heap.allocate(PAGE)[0] == PAGE
    monkeypatch.undo()

    assert used(file) == PAGE
    assert heap.allocate(PAGE)[0] == 0


def test_memory_freed_during_an_allocation_is_there_for_the_next_one(
    heap: Heap, file: int
) -> None:
    offset, _ = heap.allocate(PAGE)
    with heap._lock:
        heap.free(offset, PAGE)
        before = used(file)

    assert before == PAGE
    assert heap.allocate(PAGE)[0] == offset
    assert used(file) == PAGE


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_memory_freed_in_a_forked_child_stays_allocated_in_its_parent(
    heap: Heap, file: int, busy: bool
) -> None:
    offset, view = heap.allocate(PAGE)
    view[:] = b"x" * PAGE
    # Another thread of the parent may be in the middle of something.
    with heap._lock if busy else nullcontext():
        child = os.fork()
        if child == 0:
            code = 1
            try:
                heap.free(offset, PAGE)
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)

    assert (status, bytes(view)) == (0, b"x" * PAGE)
    heap.free(offset, PAGE)
    assert used(file) == 0


def test_threads_never_get_the_same_memory(heap: Heap, file: int) -> None:
    failures: list[str] = []

    def work(mark: int) -> None:
        for turn in range(200):
            nbytes = 1 + (turn * 997 + mark * 131) % (3 * PAGE)
            offset, view = heap.allocate(nbytes)
            view[:] = bytes([mark]) * nbytes
            if bytes(view) != bytes([mark]) * nbytes:
                failures.append(f"{mark} at {offset}")
            heap.free(offset, nbytes)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert used(file) == 0
    assert heap._free == [(0, HEAP_SPAN)]


class AllocateAndFree(RuleBasedStateMachine):
    """Any order of coming and going: nothing overlaps, and everything comes back."""

    allocated = Bundle("allocated")

    def __init__(self) -> None:
        super().__init__()
        self.fd = sparse_file(2)
        self.heap = Heap(self.fd, 1, 2)
        # What was asked for, by its place.
        self.held: dict[int, int] = {}

    @rule(
        target=allocated,
        nbytes=st.integers(0, 5 * PAGE) | st.integers(HUGE - 1, 2 * HUGE),
    )
    def allocate(self, nbytes: int) -> tuple[int, int]:
        offset, view = self.heap.allocate(nbytes)
        assert len(view) == nbytes
        assert offset % (HUGE if nbytes >= HUGE else PAGE) == 0
        for other, length in self.held.items():
            assert offset != other
            assert offset + nbytes <= other or other + length <= offset
        self.held[offset] = nbytes
        return offset, nbytes

    @rule(block=consumes(allocated))
    def free(self, block: tuple[int, int]) -> None:
        self.heap.free(*block)
        del self.held[block[0]]

    @invariant()
    def what_is_free_is_in_order_and_in_one_piece(self) -> None:
        bounds = [bound for block in self.heap._free for bound in block]
        assert all(a < b for a, b in pairwise(bounds))

    @invariant()
    def exactly_what_is_held_is_there(self) -> None:
        pages = sum(max(1, -(-nbytes // PAGE)) for nbytes in self.held.values())
        assert used(self.fd) == pages * PAGE

    def teardown(self) -> None:
        for offset, nbytes in self.held.items():
            self.heap.free(offset, nbytes)
        assert used(self.fd) == 0
        assert self.heap._free == [(0, HEAP_SPAN)]
        self.heap.close()
        os.close(self.fd)


TestAnyOrder = AllocateAndFree.TestCase
TestAnyOrder.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, database=None
)
