"""Transports besides the product's: among threads, and over unix sockets.

Each call is one exchange, in which every member sends its arrays to every other one,
and numpy does the rest. So they show what a transport needs, and no more.
"""

import ctypes
import os
import pickle
import socket
import struct
import threading
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from itertools import accumulate
from time import monotonic_ns
from typing import Any, Self

import numpy as np

from popdist import transports
from popdist.engine.call_table import CallFields, EngineCall, pairs_in
from popdist.engine.failures import (
    Ending,
    ErrorFields,
    describe_call,
    explain,
    failed,
    fields_of,
    unusable,
)
from popdist.engine.handle import Helper
from popdist.engine.meet import rendezvous
from popdist.engine.meet.deadlines import report
from popdist.engine.meet.meeting import Meeting
from popdist.engine.meet.messages import Member
from popdist.engine.meet.pidfds import Pidfd, watch
from popdist.engine.rows import Rows
from popdist.engine.spec import reference
from popdist.engine.spec.dtypes import dtype_of, item_bytes_of, reduction_name_of
from popdist.engine.spec.operations import (
    NO_PRELUDE,
    Described,
    Operation,
    Status,
    Trace,
)
from popdist.engine.transport import Transport
from popdist.errors import PopdistError

_REDUCING = (Operation.ALL_REDUCE, Operation.REDUCE, Operation.REDUCE_SCATTER)
# Operations in which all members' arrays must have the same shape.
_OF_ONE_SHAPE = (
    *_REDUCING,
    *(Operation.SEND, Operation.RECEIVE, Operation.BROADCAST, Operation.ALL_TO_ALL),
)

# What a member sends for a call: what it is about, and the bytes of rows.
Frame = tuple[Described, object, list[bytes]]


@dataclass(kw_only=True)
class _Shared:
    """What all views of one member have in common."""

    timeout: float
    changed: threading.Condition = field(default_factory=threading.Condition)
    # By the member that has sent them, and whether they are of send().
    inboxes: dict[tuple[int, bool], deque[Frame]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    lost: set[int] = field(default_factory=set)
    ending: Ending | None = None
    reported: bool = False
    closed: bool = False
    pending: int = 0
    calls: int = 0
    trace: Trace | None = None
    last: Described = (Operation.BARRIER, 0, 0, 0, 0, 0, 0, 0)


class ExchangingTransport(Transport):
    """A transport that can only send a frame to another member, and wait for one."""

    core = None
    cores = 1
    last_algorithm = "direct"
    waits = (0, 0, 0, 0)
    pidfds: dict[int, Pidfd] = {}  # noqa: RUF012
    runs: dict[str, int] = {}  # noqa: RUF012

    def __init__(
        self, rank: int, instances: Sequence[int], timeout: float, stall: float
    ) -> None:
        self.rank = rank
        self.instances = tuple(instances)
        self.replicas = (1,) * len(self.instances)
        self.pidfds = {}
        self._shared = _Shared(timeout=timeout)
        self._stall = stall
        self._others = [i for i in range(len(self.instances)) if i != rank]

    def _send(self, peer: int, frame: Frame | Ending, of_send: bool) -> None:
        raise NotImplementedError

    def deliver(self, source: int, frame: Frame | Ending, of_send: bool) -> None:
        """Take what another member has sent."""
        with self._shared.changed:
            if len(frame) == 3:
                self._shared.inboxes[source, of_send].append(frame)
            else:
                self._shared.ending = self._shared.ending or frame
            self._shared.changed.notify_all()

    def lose(self, source: int) -> None:
        """Note that another member sends nothing more."""
        with self._shared.changed:
            self._shared.lost.add(source)
            self._shared.changed.notify_all()

    def view(self, replicas: Sequence[int]) -> Self:
        view = copy(self)
        view.replicas = tuple(replicas)
        return view

    def set_trace(self, trace: Trace | None) -> None:
        self._shared.trace = trace

    # There is no core whose calls could be recorded.
    identity = "unix"

    def record_to(self, recorder: object, group: int) -> None:
        """Record nothing."""

    def queue(self, more: int) -> int:
        self._shared.pending += more
        return self._shared.pending

    def blocks(self, nbytes: int) -> tuple[int, bool]:
        return nbytes, False

    def allocate(self, nbytes: int) -> None:
        """Return None: the members share no memory."""

    def set_timeout(self, seconds: float) -> None:
        self._shared.timeout = seconds

    def close(self) -> None:
        self._shared.closed = True

    disown = close

    def end(self, error: PopdistError) -> None:
        self._end(self._ending(Status.END_REQUESTED, self.rank, error=error))

    def give_up(self, what: str, error: BaseException) -> None:
        if self._shared.ending is None:
            self._shared.reported = True
            self.end(failed(self.instances[self.rank], what, error))

    def _ending(
        self,
        why: Status,
        about: int,
        theirs: Described | None = None,
        error: PopdistError | None = None,
    ) -> Ending:
        mine = self._shared.last
        fields = ErrorFields(why, "") if error is None else fields_of(error)
        return why, self.rank, about, self._shared.calls, mine, theirs or mine, fields

    def _end(self, ending: Ending) -> None:
        with self._shared.changed:
            if self._shared.ending is not None:
                return
            self._shared.ending = ending
            self._shared.changed.notify_all()
        for peer in self._others:
            self._send(peer, ending, False)

    def _failure(self) -> PopdistError:
        shared = self._shared
        if shared.closed or shared.ending is None:
            return unusable(None, self.instances)
        why = explain(shared.ending, self.instances, shared.timeout)
        if not shared.reported:
            shared.reported = True
            return why
        error = unusable(shared.ending, self.instances)
        error.__cause__ = why
        return error

    def _wait(self, source: int, of_send: bool) -> deque[Frame]:
        """Return what a member has sent, once there is something."""
        shared = self._shared
        # Two threads could each make an inbox for the same member.
        with shared.changed:
            inbox = shared.inboxes[source, of_send]

        def is_over() -> bool:
            gone = source in shared.lost
            return bool(inbox) or shared.ending is not None or shared.closed or gone

        with shared.changed:
            first = min(self._stall, shared.timeout)
            if not shared.changed.wait_for(is_over, min(first, 1e6)):
                if self._stall < shared.timeout:
                    self._report_stall(source)
                left = min(shared.timeout - first, 1e6)
                shared.changed.wait_for(is_over, left)
            # What was sent before a group's end belongs to calls before it.
            if inbox:
                return inbox
        gone = source in shared.lost
        self._end(self._ending(Status.PEER_LOST if gone else Status.TIMED_OUT, source))
        raise self._failure()

    def _report_stall(self, peer: int) -> None:
        me, instance = self.instances[self.rank], self.instances[peer]
        report(
            f"popdist: instance {me} has waited {self._stall:.0f} s for instance "
            f"{instance} (process {self.pidfds[instance].pid} on {os.uname().nodename})"
            f" in {describe_call(self._shared.last, self.instances)}."
        )

    @contextmanager
    def _call(self, call: Described) -> Iterator[None]:
        """Begin and end a call; its trace is told."""
        shared = self._shared
        if shared.closed or shared.ending is not None:
            raise self._failure()
        shared.calls += 1
        shared.last = call
        began, succeeded = monotonic_ns(), False
        try:
            yield
            succeeded = True
        finally:
            if shared.trace is not None:
                shared.trace(call, began, monotonic_ns(), succeeded)

    def _exchange(
        self, call: Described, rows: list[bytes], details: object = None
    ) -> list[list[bytes]]:
        """Return the rows of all members, which must make the same call."""
        frames = {self.rank: (call, details, rows)}
        with self._call(call):
            for peer in self._others:
                self._send(peer, (call, details, rows), False)
            for peer in self._others:
                frames[peer] = self._wait(peer, False).popleft()
                if frames[peer][:2] != (call, details):
                    self._end(self._ending(Status.MISMATCH, peer, frames[peer][0]))
                    raise self._failure()
        return [frames[i][2] for i in range(len(self.instances))]

    def run(self, fields: CallFields) -> None:
        call = EngineCall(*fields)
        if isinstance(call.arrays, bytes):
            replicas = self.replicas[self.rank]
            call = call._replace(arrays=pairs_in(call.arrays, call.dtype, replicas))
        match call.operation:
            case Operation.SEND:
                self._send_row(call)
            case Operation.RECEIVE:
                self._receive_row(call)
            case Operation.ALL_REDUCE | Operation.REDUCE | Operation.REDUCE_SCATTER:
                self._reduce(call)
            case _:
                self._hand_on(call)

    def _reduce(self, call: EngineCall) -> None:
        given = [row for source, _ in call.arrays for row in read(source)]
        details = self.replicas, agreed_shapes(call)
        members = self._exchange(description_of(call), given, details)
        for index, (_, target) in enumerate(call.arrays):
            inputs = []
            for replicas, rows in zip(self.replicas, members, strict=True):
                own = rows[index * replicas : (index + 1) * replicas]
                flat = np.frombuffer(b"".join(own), dtype_of(call.dtype))
                inputs.append(flat.reshape(replicas, -1))
            name = reduction_name_of(call.reduction)
            total = reference.all_reduce(inputs, name).tobytes()
            if call.operation is Operation.REDUCE_SCATTER:
                each = len(total) // sum(self.replicas)
                begin = sum(self.replicas[: self.rank]) * each
                total = total[begin : begin + target.nbytes]
            if call.root in (-1, self.rank):
                for row in range(len(target.addresses)):
                    write(target, total, row)

    def _hand_on(self, call: EngineCall) -> None:
        is_giver = call.operation not in (Operation.BROADCAST, Operation.SCATTER)
        given = []
        if call.arrays and (is_giver or self.rank == call.root):
            given = read(call.arrays[0][0])
        details = agreed_shapes(call), list(call.lengths)
        frames = self._exchange(description_of(call), given, details)
        if not call.arrays:
            return
        rows = [b"".join(frame) for frame in frames]
        begins = [0, *accumulate(call.lengths)]
        own = slice(*begins[self.rank : self.rank + 2])
        match call.operation:
            case Operation.BROADCAST:
                result = rows[call.root]
            case Operation.SCATTER:
                result = rows[call.root][own]
            case Operation.ALL_TO_ALL:
                result = b"".join(row[own] for row in rows)
            case _:
                result = b"".join(rows)
        if call.operation is not Operation.GATHER or self.rank == call.root:
            write(call.arrays[0][1], result)

    def _send_row(self, call: EngineCall) -> None:
        with self._call(description_of(call)):
            if call.root in self._shared.lost:
                self._end(self._ending(Status.PEER_LOST, call.root))
                raise self._failure()
            frame = description_of(call), None, read(call.arrays[0][0])
            self._send(call.root, frame, True)

    def _receive_row(self, call: EngineCall) -> None:
        row, source = call.arrays[0][1], call.root
        with self._call(description_of(call)):
            theirs, _, [data] = self._wait(source, True).popleft()
            if (theirs[1], theirs[5]) != (row.dtype, row.count):
                self._end(self._ending(Status.MISMATCH, source, theirs))
                raise self._failure()
        write(row, data)


def agreed_shapes(call: EngineCall) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of arrays, where members must agree on them."""
    # A prelude's rows are headers, which all have one shape.
    if call.operation in _OF_ONE_SHAPE and call.prelude_to == NO_PRELUDE:
        return tuple([source.shape for source, _ in call.arrays])
    return ()


def description_of(call: EngineCall) -> Described:
    """Return the description of a call that members compare and show."""
    if call.lengths and call.operation is not Operation.BROADCAST:
        count = sum(call.lengths) // item_bytes_of(call.dtype)
    else:
        count = sum(source.count for source, _ in call.arrays)
    reduces = call.operation in _REDUCING
    how = (call.reduction, max(call.algorithm, 0)) if reduces else (0, 0)
    about = call.root, count, call.name, call.prelude_to
    return (call.operation, call.dtype, *how, *about)


def read(rows: Rows) -> list[bytes]:
    return [ctypes.string_at(begin, rows.nbytes) for begin in rows.addresses]


def write(rows: Rows, data: bytes, row: int = 0) -> None:
    assert len(data) == rows.nbytes
    ctypes.memmove(rows.addresses[row], data, len(data))


class ThreadTransport(ExchangingTransport):
    """Carries rows among threads of one process."""

    members: list["ThreadTransport"]

    @classmethod
    def of(cls, size: int) -> list[Self]:
        """Return the transports of all members of a group."""
        members = [cls(rank, range(size), 20, 20) for rank in range(size)]
        for one in members:
            one.members = [*members]
        return members

    def _send(self, peer: int, frame: Frame | Ending, of_send: bool) -> None:
        self.members[peer].deliver(self.rank, frame, of_send)


class UnixTransport(ExchangingTransport):
    """Carries rows among processes of one host, over a socket for each pair of them."""

    @classmethod
    def meet(cls, meeting: Meeting, **_: Any) -> Self:
        rank, instances = meeting.rank, meeting.instances
        member = cls(rank, instances, meeting.timeout, meeting.stall)
        if meeting.size > 1:
            rendezvous(meeting, "unix", offer=member._offer, attach=member._attach)
        member._connect()
        for peer in member._sockets:
            Helper(target=member._listen, args=(peer,), daemon=True).start()
        return member

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._listener = socket.socket(socket.AF_UNIX)
        self._sockets: dict[int, socket.socket] = {}

    def close(self) -> None:
        super().close()
        for line in self._sockets.values():
            with suppress(OSError):
                line.shutdown(socket.SHUT_WR)

    def disown(self) -> None:
        super().close()

    def _offer(self, members: Sequence[Member]) -> int:
        secret = os.memfd_create("secret")
        os.write(secret, os.urandom(16))
        return secret

    def _attach(self, secret: int, members: Sequence[Member]) -> None:
        """Listen for those of higher ranks; once all do so, they connect."""
        self._address = f"\0{os.pread(secret, 16, 0).hex()} "
        os.close(secret)
        self._listener.bind(f"{self._address}{self.rank}")
        self._listener.listen(len(members))
        for peer in self._others:
            instance = self.instances[peer]
            self.pidfds[instance] = watch(instance, members[peer])

    def _connect(self) -> None:
        with self._listener:
            for peer in range(self.rank):
                line = self._sockets[peer] = socket.socket(socket.AF_UNIX)
                line.connect(f"{self._address}{peer}")
                line.sendall(bytes([self.rank]))
            while len(self._sockets) < len(self._others):
                line, _ = self._listener.accept()
                self._sockets[_received(line, 1)[0]] = line

    def _send(self, peer: int, frame: Frame | Ending, of_send: bool) -> None:
        data = pickle.dumps((frame, of_send))
        with suppress(OSError):
            self._sockets[peer].sendall(struct.pack("!Q", len(data)) + data)

    def _listen(self, peer: int) -> None:
        line = self._sockets[peer]
        with suppress(OSError), line:
            while header := _received(line, 8):
                frame, of_send = pickle.loads(
                    _received(line, struct.unpack("!Q", header)[0])
                )
                self.deliver(peer, frame, of_send)
        self.lose(peer)


def _received(line: socket.socket, count: int) -> bytes:
    parts = []
    while count and (part := line.recv(min(count, 1 << 20))):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def register() -> None:
    """Let all groups of this process, and of those it forks, go over unix sockets."""
    transports.meet_members_of = lambda *_: UnixTransport.meet
