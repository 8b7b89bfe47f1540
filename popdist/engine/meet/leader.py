"""The leader's part of a meeting: member 0 listens, checks hellos and answers."""

import errno
import select
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread
from time import monotonic, sleep

from popdist.engine.meet.connection import Connection, accept, connect, listen
from popdist.engine.meet.group_name import address_of
from popdist.engine.meet.meeting import Meeting
from popdist.engine.meet.messages import (
    BEGIN,
    INVALID,
    MISSING,
    READY,
    REFUSAL,
    WELCOME,
    Hello,
    MeetingMessage,
    Member,
    decode_refusal,
    encode_refusal,
)
from popdist.engine.meet.pidfds import lost
from popdist.errors import (
    ArenaError,
    CollectiveTimeoutError,
    MismatchError,
    PeerLostError,
    PopdistError,
)

# How many connections without a hello may be open. One more closes the oldest.
_MOST_UNNAMED = 64
# For how many seconds an address may be bound without accepting connections.
_OCCUPIED = 0.5
# For how many seconds members that connect after a failure are answered, and how often
# to check whether all have been.
LINGER = 5.0
_LOOK = 0.1

# The leaders of failed meetings that still listen, by their addresses.
_lingering: "dict[bytes, Leader]" = {}


class Leader:
    """Member 0, from the first hello until all have met."""

    def __init__(self, meeting: Meeting, hello: Hello) -> None:
        if not isinstance(meeting.name, str):
            raise TypeError("Member 0 is to look a name up, but must choose it itself.")
        self._meeting = meeting
        self._hello = hello
        self._deadline = meeting.deadline()
        self._address = address_of(meeting.name)
        self._members = {0: Member(hello.pid, hello.started)}
        self._joiners: dict[int, Connection] = {}
        self._connections: dict[int, Connection] = {}
        # A sentence about a process of another user that has tried to connect.
        self._remark = ""
        # The processes of members that know of this meeting, and how many are expected.
        self._came: set[int] = set()
        self._expected = hello.size - 1
        # After a failure: its error, and the thread that sends it to late members.
        self._failure: PopdistError | None = None
        self._late: Thread | None = None
        if (earlier := _lingering.pop(self._address, None)) is not None:
            earlier.stop_answering()
        try:
            self._listener = listen(self._address, hello.size)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise self._occupied() from error
        self._poll = select.poll()
        self._poll.register(self._listener, select.POLLIN)
        self._pidfds = meeting.pidfds()
        for pidfd in self._pidfds:
            self._poll.register(pidfd, select.POLLIN)

    def collect(self) -> list[Member]:
        """Wait until all have connected, and return them in the order of ranks."""
        while missing := self._missing():
            for connection, message in self._receive(missing):
                raise self._meeting.malformed(connection, message.packet)
        return [self._members[rank] for rank in sorted(self._members)]

    def welcome(self, fd: int) -> None:
        """Send the table of members and the file descriptor to all."""
        # The listener ends before any member goes on: those that meet once more under
        # this name are not to come to the old place.
        self._poll.unregister(self._listener)
        self._listener.close()
        self._refuse_others()
        members = [self._members[rank] for rank in sorted(self._members)]
        for connection in self._joiners.values():
            self._send(connection, WELCOME, members, fd)

    def begin(self) -> None:
        """Wait until all have taken over what they share, and release them."""
        missing = sorted(self._joiners)
        while missing:
            for connection, message in self._receive(missing):
                if message.kind != READY or connection.rank not in missing:
                    raise self._meeting.malformed(connection, message.packet)
                missing.remove(connection.rank)
        # From here on the meeting has succeeded. The end of a member is now
        # detected by its pidfd, by all members in the same way.
        for connection in self._joiners.values():
            connection.send(BEGIN)

    def reason(self, error: PeerLostError) -> PopdistError:
        """Return the error that a lost member has sent before its end, if it has."""
        try:
            for rank, connection in self._joiners.items():
                while self._meeting.instances[rank] in error.instances:
                    self._receive_from(connection)
        except PopdistError as reason:
            return reason
        except BlockingIOError:  # a process that it has started has its connection
            pass
        return error

    def refuse(self, error: PopdistError) -> None:
        """Send all, also those that connect later, why the meeting fails."""
        for connection in self._connections.values():
            connection.send(REFUSAL, encode_refusal(error))
        if isinstance(error, CollectiveTimeoutError):
            return
        if isinstance(error, PeerLostError) and self._all_see(error.instances):
            return
        if self._listener.fileno() >= 0 and len(self._came) < self._expected:
            self._answer_late_members(error)

    def close(self) -> None:
        """Close all connections, unless a thread answers late members by them."""
        if self._late is None:
            self._close_all()

    def _close_all(self) -> None:
        self._listener.close()
        for connection in self._connections.values():
            connection.close()

    def _answer_late_members(self, failure: PopdistError) -> None:
        """Answer members that connect after a failure, in a new thread.

        They would wait for member 0 until their timeout otherwise.
        """
        self._failure = failure
        for connection in list(self._connections.values()):
            # The hellos of the others are still to be read, and counted.
            if connection.rank is not None:
                self._drop(connection)
        # With the launcher's file, late ones see for themselves who has ended.
        daemon = bool(self._meeting.ended_file)
        self._late = Thread(target=self._answer_until_all_know, daemon=daemon)
        self._late.start()
        _lingering[self._address] = self

    def _answer_until_all_know(self) -> None:
        self._poll = select.poll()
        self._poll.register(self._listener, select.POLLIN)
        for connection in self._connections.values():
            self._poll.register(connection, select.POLLIN)
        until = monotonic() + LINGER
        try:
            while len(self._came) < self._expected and monotonic() < until:
                for descriptor, _ in self._poll.poll(_LOOK * 1000):
                    # It raises its own error.
                    with suppress(PopdistError):
                        self._take(descriptor)
        except OSError:
            # Out of file descriptors, say. Members that connect now get no answer.
            return
        finally:
            self._close_all()

    def stop_answering(self) -> None:
        """Answer late members no more, and free the address."""
        self._expected = 0
        if self._late is not None:
            self._late.join()

    def _all_see(self, lost: Sequence[int]) -> bool:
        """Return whether members that connect later detect the loss by pidfds."""
        known = {self._meeting.instances[rank] for rank in self._pidfds.values()}
        return set(lost) <= known

    def _receive(
        self, missing: Sequence[int]
    ) -> list[tuple[Connection, MeetingMessage]]:
        """Wait, and return the messages of members. Raise if one has ended."""
        wait = self._meeting.wait(self._deadline.left())
        events = self._poll.poll(wait * 1000)
        stalled = self._deadline.stalled
        self._deadline.check(lambda: self._meeting.name_of(missing), self._remark)
        if self._deadline.stalled and not stalled:
            for connection in self._joiners.values():
                self._send(connection, MISSING, missing)
        descriptors = [d for d, _ in events if d not in self._pidfds]
        if events and not descriptors:
            # A member may have sent the reason before it ended: by now it is received.
            self._meeting.check()
            # They live, but the program has closed their pidfds.
            for pidfd, _ in events:
                self._poll.unregister(pidfd)
                del self._pidfds[pidfd]
        if not events:
            self._meeting.check_file()
        return [message for one in descriptors for message in self._take(one)]

    def _take(self, descriptor: int) -> list[tuple[Connection, MeetingMessage]]:
        """Accept a connection, or return the message that has arrived from a member."""
        if descriptor == self._listener.fileno():
            self._accept()
        elif descriptor in self._connections:
            return self._receive_from(self._connections[descriptor])
        return []

    def _receive_from(
        self, connection: Connection
    ) -> list[tuple[Connection, MeetingMessage]]:
        try:
            message = connection.receive()
        except ConnectionError:
            message = MeetingMessage("", None, b"")
        if message.kind == REFUSAL:
            self._came.add(connection.pid)
            raise self._refusal(connection, message)
        if connection.rank is None:
            self._admit(connection, message)
            return []
        if not message.packet:
            raise self._lost(connection)
        return [(connection, message)]

    def _accept(self) -> None:
        connection = accept(self._listener)
        if not connection.is_of_this_user:
            # It raises its own error if it is a member.
            self._remark = (
                f" Process {connection.pid} of user {connection.uid} has tried to "
                "join: start all instances as the same user."
            )
            connection.close()
            return
        # An abstract address is open to whatever looks at sockets.
        unnamed = [one for one in self._connections.values() if one.rank is None]
        if len(unnamed) >= _MOST_UNNAMED:
            self._drop(unnamed[0])
        self._connections[connection.fileno()] = connection
        # The program may have closed the pidfd that had this number.
        self._pidfds.pop(connection.fileno(), None)
        self._poll.register(connection, select.POLLIN)

    def _admit(self, connection: Connection, message: MeetingMessage) -> None:
        """Accept a process as a member if its first message says that it is one."""
        hello = Hello.decode(message)
        if hello is None:
            self._drop(connection)
            return
        if self._failure is not None:
            self._came.add(connection.pid)
            self._dismiss(connection, self._failure)
            return
        if false := self._meeting.objection(hello.rank, connection.pid):
            # The refusal is for it alone: the real one is still to connect.
            self._dismiss(connection, MismatchError(false))
            return
        self._came.add(connection.pid)
        self._expected = max(self._expected, hello.size - 1)
        instances = self._meeting.instances
        objection = hello.objection(self._hello, connection.pid, instances)
        if objection is None and hello.rank in self._members:
            objection = (
                f"Processes {self._members[hello.rank].pid} and {connection.pid} both "
                f"say that they are {self._meeting.name_of([hello.rank])} of this "
                "group. Give each process of the group a rank of its own."
            )
        if objection is not None:
            raise MismatchError(objection)
        connection.rank = hello.rank
        self._joiners[hello.rank] = connection
        self._members[hello.rank] = Member(hello.pid, hello.started)
        if self._deadline.stalled:
            self._send(connection, MISSING, self._missing() or [0])

    def _occupied(self) -> ArenaError:
        """Return the error for an address at which another process listens."""
        until = monotonic() + _OCCUPIED
        while (other := connect(self._address)) is None and monotonic() < until:
            sleep(0.01)
        socket = self._address[1:].decode()
        if other is None:
            return ArenaError(
                f"{self._meeting.own_name} cannot listen at the socket {socket!r}: "
                "another process holds it and accepts no connections. Start the job "
                "again."
            )
        other.close()
        if not other.is_of_this_user:
            return ArenaError(
                f"{self._meeting.own_name} cannot listen at the socket {socket!r}: "
                f"process {other.pid} of user {other.uid} does. Start all instances "
                "as the same user, and the job again."
            )
        return ArenaError(
            f"The socket {socket!r} is in use: process {other.pid} is already "
            f"{self._meeting.own_name.lower()} of this group. Start one process for "
            "each instance."
        )

    def _missing(self) -> list[int]:
        return [r for r in range(self._hello.size) if r not in self._members]

    def _refuse_others(self) -> None:
        error = MismatchError(
            f"All {self._hello.size} instances of this group have already joined, and "
            "this process is one too many. Start one process for each instance."
        )
        for connection in list(self._connections.values()):
            if connection.rank is None:
                self._dismiss(connection, error)

    def _dismiss(self, connection: Connection, error: PopdistError) -> None:
        connection.send(REFUSAL, encode_refusal(error))
        self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self._poll.unregister(connection)
        del self._connections[connection.fileno()]
        connection.close()

    def _send(
        self, connection: Connection, kind: str, value: object, fd: int | None = None
    ) -> None:
        if not connection.send(kind, value, fd):
            raise self._lost(connection)

    def _lost(self, connection: Connection) -> PeerLostError:
        assert connection.rank is not None
        return lost(self._meeting.instances[connection.rank], connection.pid)

    def _refusal(self, connection: Connection, message: MeetingMessage) -> PopdistError:
        try:
            return decode_refusal(message.value)
        except INVALID:
            return self._meeting.malformed(connection, message.packet)
