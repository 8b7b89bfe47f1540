"""A fake of what the core calls of MPI, between threads of one process."""

import ctypes
from collections import defaultdict, deque
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray

# What messages are tagged with, from the receiver's first tag on; see links.h.
RECORD, NODES, RESULTS, ROWS, MESSAGES = range(5)
# How many tags each rank has.
TAGS = 10

# What MPI_Test returns for a message that is longer than its receiver's memory.
TRUNCATED = 15

# Handles are numbers here, and so are addresses.
_INT, _WORD = ctypes.c_int, ctypes.c_size_t
_TRANSFER = ctypes.CFUNCTYPE(_INT, _WORD, _INT, _WORD, _INT, _INT, _WORD, _WORD)
_TEST = ctypes.CFUNCTYPE(_INT, _WORD, _WORD, _WORD)

# As those of MPI, functions stay until the process ends: an endpoint tests messages
# that are under way when it is freed.
_KEPT: list[object] = []


@dataclass
class _End:
    """A rank's end of a message, whose memory is in use until it is done."""

    address: int
    nbytes: int
    sends: bool
    rank: int
    other: "_End | None" = None
    tested: bool = False
    done: bool = False


@dataclass
class Sent:
    """A message that was sent: between which ranks, of which kind, and its size."""

    source: int
    to: int
    kind: int
    nbytes: int


class FakeLinks:
    """MPI_Isend, MPI_Irecv and MPI_Test among ranks of one process.

    The handle of a communicator is the number of the rank that uses it. A message takes
    at least two tests of one of its ends: until then its memory is in use.

    senders: The ranks that have sent messages, by their kinds.
    nbytes: How many bytes have been sent, by the kinds of messages.
    sent: All messages.
    errors: What functions return in place of 0, by name.
    functions: Their addresses, in the order above.
    """

    def __init__(self) -> None:
        self.senders = defaultdict[int, set[int]](set)
        self.nbytes = defaultdict[int, int](int)
        self.sent: list[Sent] = []
        self.errors: dict[str, int] = {}
        self._lock = Lock()
        # Those whose other ends have not come, by source, target and tag: all of one
        # queue send, or all receive.
        self._alone = defaultdict[tuple[int, int, int], deque[_End]](deque)
        # By the handles of their requests, which count from 1.
        self._ends: list[_End] = []
        functions = _TRANSFER(self._isend), _TRANSFER(self._irecv), _TEST(self._test)
        _KEPT.append(functions)
        self.functions = [
            ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions
        ]

    def _isend(
        self, data: int, nbytes: int, _: int, to: int, tag: int, own: int, request: int
    ) -> int:
        with self._lock:
            self.senders[tag % TAGS].add(own)
            self.nbytes[tag % TAGS] += nbytes
            self.sent.append(Sent(own, to, tag % TAGS, nbytes))
        self._begin(_End(data, nbytes, True, own), (own, to, tag), request)
        return self.errors.get("isend", 0)

    def _irecv(
        self, data: int, nbytes: int, _: int, of: int, tag: int, own: int, request: int
    ) -> int:
        self._begin(_End(data, nbytes, False, own), (of, own, tag), request)
        return self.errors.get("irecv", 0)

    def _begin(self, end: _End, ends: tuple[int, int, int], request: int) -> None:
        with self._lock:
            self._ends.append(end)
            _WORD.from_address(request).value = len(self._ends)
            alone = self._alone[ends]
            if alone and alone[0].sends != end.sends:
                end.other = alone.popleft()
                end.other.other = end
            else:
                alone.append(end)

    def awaited(self, rank: int) -> list[tuple[int, int]]:
        """Return the addresses and sizes of a rank's receives that are not done."""
        ends = [end for end in self._ends if not end.sends and not end.done]
        return [(end.address, end.nbytes) for end in ends if end.rank == rank]

    def deliver(self, data: NDArray[np.uint8], source: int, to: int, tag: int) -> None:
        """Send a message that is awaited, and write it to its receiver's memory."""
        request, done = _WORD(), _INT()
        places = ctypes.addressof(request), ctypes.addressof(done)
        self._isend(data.ctypes.data, data.nbytes, 0, to, tag, source, places[0])
        while not done.value:
            self._test(*places, 0)

    def _test(self, request: int, done: int, _: int) -> int:
        handle = _WORD.from_address(request)
        is_done, error = True, 0
        if handle.value:
            with self._lock:
                end = self._ends[handle.value - 1]
                if end.other and end.tested and not end.done:
                    error = _deliver(end, end.other)
                end.tested, is_done = True, end.done
        if is_done:
            handle.value = 0
        _INT.from_address(done).value = is_done
        return error or self.errors.get("test", 0)


def _deliver(one: _End, other: _End) -> int:
    """Copy a message to its receiver's memory; return 0 or an error."""
    source, target = (one, other) if one.sends else (other, one)
    if source.nbytes > target.nbytes:
        return TRUNCATED
    ctypes.memmove(target.address, source.address, source.nbytes)
    one.done = other.done = True
    return 0
