"""The C core. popdist.engine.spec.operations has names for its numbers."""

from collections.abc import Callable, Sequence, Set
from typing import Any, Final, Literal

from popdist.engine.spec.operations import Described, Trace

# The version of its interface, which popdist.engine checks.
VERSION: Final[int]

# The kinds of messages to a member of a group over hosts: each has a tag.
MESSAGE_KINDS: Final[int]

# The most lost instances that an error can name.
MOST_LOST: Final[int]

# A group of more members than this begins its calls along a hierarchy of members.
HIERARCHY_ABOVE: Final[int]

class Failure(Exception):
    """A call has failed, and Comm.explain_by() has not been called.

    Comm.ending() returns the reason.
    """

class Split:
    """How the replicas of a group are shared out among its members."""

    # `hosts` has each member's host, numbered from 0, in a group over hosts.
    def __new__(
        cls,
        rank: int,
        rows: Sequence[int],
        hosts: Sequence[int] | None = None,
    ) -> Split: ...

class Comm:
    """One member's endpoint in an arena. One call at a time; others wait for it."""

    def __new__(
        cls,
        memory: Any,  # a writable buffer
        rank: int,
        simd: str | None,
        pidfds: Sequence[int],  # -1 for none
        pids: Sequence[int],
        timeout: float,
        stall: float,
        on_stall: Callable[[int, float], object],
        instance: int = -1,  # the member's name in messages; by default its rank
    ) -> Comm: ...
    # Make a call from the fields of an EngineCall, which may have a table in place of
    # its arrays: see Group.all_reduce_table. A reduction needs a Split. The arrays of a
    # call over hosts are never freed if it fails while links may read or write them.
    def run(self, split: Split | None, call: tuple[Any, ...], /) -> None: ...
    # End the group with a Status's error, a message, and at most 15 lost instances.
    def end(self, error: int, message: str, lost: Sequence[int] = (), /) -> None: ...
    # A failures.Ending.
    def ending(
        self,
    ) -> (
        tuple[
            *tuple[int, int, int, int],
            *tuple[Described, Described],
            tuple[int, str, tuple[int, ...]],
        ]
        | None
    ): ...
    # Set the timeout of waits that begin from now on.
    def set_timeout(self, seconds: float, /) -> None: ...
    # True in the middle of a call of this thread, False in one of another thread.
    def in_call(self) -> bool | None: ...
    # How to reach the other hosts of a larger group: links (see mpi_links()), this
    # member's rank, and the hosts, processes and first tags of all members. Hosts are
    # numbered in the order of their first members. `hooks` has look_while_waiting,
    # prepare, end_for_mismatch, end_after_link_error and end_for_death; see
    # HostsMember. From then on, all calls are those of the larger group.
    def connect_hosts(
        self,
        links: object,
        rank: int,
        hosts: Sequence[int],
        processes: Sequence[int],
        tags: Sequence[int],
        hooks: object,
        /,
    ) -> None: ...
    # A member has died: nothing is sent to it any more.
    def note_death(self, member: int, /) -> None: ...
    # The last call of the larger group, and the number of them so far. Messages between
    # two members are not counted.
    def larger_call(self) -> tuple[Described, int]: ...
    # Raise the error that this function returns in place of Failure. It must not keep
    # this object alive.
    def explain_by(self, explain: Callable[[], BaseException], /) -> None: ...
    # Called with each finished call; it must not keep this object alive.
    def set_trace(self, trace: Trace | None, /) -> None: ...
    # The members that have not begun the current call; once the group has ended, the
    # members that had not begun its last call.
    def missing(self) -> list[int]: ...
    # Whether a member is in a call, and its last calls with their numbers, the last one
    # first. It may begin another one meanwhile: they are for messages.
    def recent(self, member: int, /) -> tuple[bool, list[tuple[int, Described]]]: ...
    # Record all calls from now on, under this number of the group.
    def record_to(self, recorder: Recorder, group: int, /) -> None: ...
    def set_heap(self, address: int, span: int, /) -> None: ...
    # Add to the number of calls that the group's thread makes before any other.
    def queue(self, more: int, /) -> int: ...
    # For how many seconds the first deferred call has waited, 0.0 if a thread makes it
    # now; -1.0 if there is none. All other calls make the deferred ones first.
    def deferred_seconds(self) -> float: ...
    def make_deferred(self) -> None: ...
    # Whether a thread makes them if they wait for long. If none does, TensorCalls call
    # watch_deferred() of the group.
    def watch(self, watched: bool, /) -> None: ...
    def last(self) -> tuple[int, int]: ...
    # The numbers of all_reduces and reduces by oneshot, by direct, by ring, and in
    # place in the arena.
    def runs(self) -> tuple[int, int, int, int]: ...
    # How many waits ended while this member was spinning, how often it yielded its
    # core, how many of these yields returned late, and how often it slept.
    def waits(self) -> tuple[int, int, int, int]: ...
    # The present choice for all_reduces of so many bytes by "direct": the bytes of a
    # block, and whether it is written past the caches. None once this is closed.
    def blocks(self, nbytes: int, /) -> tuple[int, int] | None: ...
    def doing(self) -> Described | None: ...
    def ring_share(self, dtype: int, /) -> int: ...
    def close(self) -> None: ...

class Reducer:
    """The base of a group: all_reduce in its most common case, without detours.

    Everything else goes to the method _all_reduce, with the same arguments.
    """

    # Without a Comm, all calls go to _all_reduce. For arrays of these types, a call
    # makes its result by `empty_like`; with `only_types`, it takes no others.
    def _bind(
        self,
        comm: Comm | None,
        split: Split | None,
        usual: int,
        leading: bool,
        types: Set[type] | None,
        empty_like: Callable[[Any], Any] | None,
        only_types: bool,
        /,
    ) -> None: ...
    # None, or NotImplemented unless all arrays are plain buffers of one dtype.
    def _reduce_lists(
        self, arrays: Sequence[Any], out: Sequence[Any], reduction: int, how: int, /
    ) -> Any: ...
    # All-reduce elements at an address in place. None, or NotImplemented if this
    # member has several rows, or if other calls have to be made before.
    def _reduce_at(
        self, address: int, count: int, dtype: int, reduction: int, /
    ) -> Any: ...
    # The same for a reduce_scatter of one array.
    def _scatter_array(self, x: Any, out: Any, reduction: int, /) -> Any: ...
    # The same for an all_gather of one array a member. If members' arrays differ,
    # gather nothing and return the headers of all of them, as bytes.
    def _gather_array(self, x: Any, out: Any, /) -> Any: ...
    def all_reduce(
        self,
        x: Any,
        op: str = "sum",
        *,
        out: Any = None,
        algorithm: str | None = None,
        reproducible: bool = False,
        async_op: bool = False,
        name: str | None = None,
    ) -> Any: ...

class TensorCall:
    """An asynchronous call of TensorCalls; keeps its tensors until it is over."""

    is_over: bool
    # Whether the result is one element.
    is_number: bool
    # Make the call, unless it is over, and those before it. Returns True.
    def wait(self) -> bool: ...

class TensorCalls:
    """The most common calls of torch.distributed, of a group with one row a member.

    They return the work `done`. If the options ask for an asynchronous call, they
    return a TensorCall, which they have deferred, or True, if they have made it. They
    return None, and have done nothing, if the call is not one of these or the group has
    ended.
    """

    # The number of calls so far, deferred ones included.
    made: int
    def __new__(
        cls,
        group: Reducer,
        # A capsule with DLPack's table of functions, or None, torch.Tensor, its method
        # is_neg, the functions that tell whether a profiler runs and which backward
        # pass this thread is in, the core's reductions by the hashes of torch's,
        # timedelta(), and the work of a finished call.
        torch: tuple[Any, ...],
        # Whether a call beside a backward pass takes no time from it. Otherwise calls
        # in such a pass are not deferred.
        overlaps: bool,
    ) -> TensorCalls: ...
    # `options` are torch's options. A tensor may be passed as a list of one.
    def all_reduce(self, tensors: Any, options: Any, /) -> Any: ...
    def broadcast(self, tensors: Any, options: Any, /) -> Any: ...
    def all_gather(self, output: Any, input: Any, options: Any, /) -> Any: ...
    def reduce_scatter(self, output: Any, input: Any, options: Any, /) -> Any: ...

class Mapping:
    """A part of a file in memory, mapped as long as anything refers to this.

    Use memoryview(mapping). Unlike mmap.mmap it holds no file descriptor. Without
    access it only takes addresses: see make_accessible().
    """

    def __new__(
        cls, fd: int, offset: int, nbytes: int, accessible: bool
    ) -> Mapping: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Recorder:
    """Records calls in an empty file, which it closes in the end.

    popdist.environment describes the file. A full one counts calls without a record.
    """

    def __new__(cls, fd: int, most: int) -> Recorder: ...
    # Stop recording.
    def close(self) -> None: ...

# Return the address of the elements of an array with numpy's __array_struct__.
def address_of(array: object, /) -> int: ...

# The bytes of an arena, and the begin and end of its part for send and receive only.
def arena_sizes(
    size: int, block: int, oneshot: int, spin_us: int, /
) -> tuple[int, int, int]: ...

# Equal for builds that can share an arena.
def arena_layout() -> int: ...

# Members with equal numbers share a last-level cache; all are 0 if that is unknown.
def initialise(
    memory: object, sizes: tuple[int, int, int, int], cache_of: bytes = ..., /
) -> None: ...

# For memory mapped without access, and for memory of a file.
def make_accessible(address: int, nbytes: int, /) -> None: ...
def remove_pages(address: int, nbytes: int, /) -> None: ...
def simd_levels() -> list[Literal["baseline", "avx2", "avx512", "neon"]]: ...

# Links by MPI, for Comm.connect_hosts(): the addresses of MPI_Isend, MPI_Irecv and
# MPI_Test, the handles of a communicator and of MPI_BYTE, and the descriptors of two
# epolls, or -1: one for connections with new data, one for connections that hang up.
def mpi_links(
    isend: int,
    irecv: int,
    test: int,
    comm: int,
    byte: int,
    epoll: int,
    hangups: int,
    /,
) -> object: ...

class TcpLinks:
    """Moves messages over sockets between processes, for popdist.engine.hosts.tcp.

    Any thread may call its methods. They raise OSError if the system refuses.
    """

    def __new__(cls, rank: int, size: int) -> TcpLinks: ...
    # For Comm.connect_hosts().
    def table(self) -> object: ...
    # Own a connected socket to a process.
    def add(self, process: int, fd: int, /) -> None: ...
    # Short messages, with tags below 16: begin to send one, take a received one with
    # its sender, and count the ones still being sent.
    def post(self, to: int, tag: int, data: bytes, /) -> None: ...
    def take(self, tag: int, /) -> tuple[int, bytes] | None: ...
    def posted(self) -> int: ...
    # Whether there is a socket to a process, or it has ended.
    def is_ready(self, process: int, /) -> bool: ...
    # Mark a process as unreachable or dead.
    def note_failed(self, process: int, is_silent: bool, /) -> None: ...
    # The dead processes: their sockets ended without a goodbye.
    def failed(self) -> list[tuple[int, bool]]: ...
    # Detect hosts that do not answer; called several times a second.
    def check_answers(self) -> None: ...
    def say_goodbye(self) -> None: ...
    # Close the sockets: the others see the end of this process.
    def shut(self) -> None: ...
    # Close the sockets in a forked child.
    def disown(self) -> None: ...
