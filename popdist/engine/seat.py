"""One member's seat in an arena: the memory, the heap, the worker and the C core.

The one place of the engine with state. Groups are views of it.
"""

import os
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from popdist.engine import _core
from popdist.engine.arena import Arena, meet
from popdist.engine.codes import Operation, Status
from popdist.engine.failures import explain, in_words, unusable
from popdist.engine.heap import HEAP_SPAN, Heap
from popdist.engine.tuning import Tuning
from popdist.engine.work import Worker
from popdist.errors import GroupUnusableError, PopdistError

_seats: "weakref.WeakSet[Seat]" = weakref.WeakSet()


class Seat:
    """What this process holds of one arena."""

    def __init__(
        self,
        name: str,
        rank: int,
        size: int,
        *,
        instances: Sequence[int],
        timeout: float,
        stall: float,
        simd: str | None,
        tuning: Tuning,
    ) -> None:
        self.rank = rank
        self.size = size
        self.instances = tuple(instances)
        self.timeout = timeout
        self.tuning = tuning
        self.closed = False
        # Whether the program has been told why the group came to its end.
        self._told = False
        self._heap: Heap | None = None
        if simd is not None and simd not in _core.simd_levels():
            raise GroupUnusableError(
                f"POPDIST_SIMD is {simd!r}, but this processor has only "
                f"{', '.join(_core.simd_levels())}. Set it to one of them, or unset it."
            )
        sizes = (size, tuning.block_bytes, tuning.oneshot_bytes, tuning.spins)
        self._arena: Arena = meet(
            name,
            rank,
            size,
            nbytes=_core.arena_bytes(*sizes),
            initialise=lambda memory: _core.initialise(memory, *sizes),
            layout=f"popdist arena 1, sizes {sizes}".encode(),
            timeout=timeout,
            stall=stall,
        )
        self.comm = _core.Comm(
            self._arena.memory,
            rank,
            simd,
            [fd + 1 for fd in self._arena.pidfds],
            timeout,
            stall,
            teller(self),
        )
        self.worker = Worker(self.comm.queue)
        _seats.add(self)

    def failure(self) -> PopdistError:
        """Return what to raise for a call that the core did not finish."""
        ending = self.comm.ending()
        # Whoever was interrupted has its KeyboardInterrupt.
        if ending is not None and ending[:2] == (Status.STOPPED, self.rank):
            self._told = True
        if ending is None or self._told:
            return unusable(ending, self.instances)
        # The first call to fail tells why, even if the others ended it before.
        self._told = True
        return explain(ending, self.instances, self.timeout)

    def allocate(self, nbytes: int) -> "np.ndarray[Any, np.dtype[np.uint8]] | None":
        """Return bytes in the arena, or None where no arrays can live there."""
        if self.closed:
            raise unusable(None, self.instances)
        heap = self._heap
        if heap is None:
            heap = self._heap = Heap(self._arena.heap_fd, self.rank, self.size)
        if nbytes == 0 or not heap.available:
            return None
        offset, memory = heap.allocate(nbytes)
        array = np.frombuffer(memory, np.uint8)
        begin = self.rank * HEAP_SPAN + offset
        self.comm.set_heap(array.__array_interface__["data"][0] - begin, HEAP_SPAN)
        weakref.finalize(array, heap.free, offset, nbytes).atexit = False
        return array

    def close(self) -> None:
        """Leave the group. The others need this member no more."""
        if self.closed:
            return
        self.worker.close()
        self.closed = True
        self.comm.close()
        if self._heap is not None:
            self._heap.close()
        self._arena.close()

    def disown(self) -> None:
        """Let go, in a child, of what is its parent's."""
        self.closed = True
        self.worker = Worker(self.comm.queue)
        self.comm.close()

    def tell_stall(self, peer: int, waited: float) -> None:
        """Say on stderr for whom a call has been waiting."""
        call = self.comm.doing()
        what = in_words(call) if call else Operation.BARRIER.words
        print(
            f"popdist: instance {self.instances[self.rank]} has waited {waited:.0f} s "
            f"for instance {self.instances[peer]} in {what}.",
            file=sys.stderr,
            flush=True,
        )


def teller(seat: Seat) -> Callable[[int, float], None]:
    """Return what the core calls in a stall; it does not keep the seat alive."""
    known = weakref.ref(seat)

    def tell(peer: int, waited: float) -> None:
        there = known()
        if there is not None:
            there.tell_stall(peer, waited)

    return tell


def _disown_all() -> None:
    for seat in list(_seats):
        seat.disown()


os.register_at_fork(after_in_child=_disown_all)
