"""The leader's part of a meeting: member 0 listens, checks hellos and answers."""

import errno
import os
import select
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread
from time import monotonic, sleep

from popdist.engine.meet.connection import (
    Connection,
    accept,
    connect,
    listen,
)
from popdist.engine.meet.deadlines import Deadline
from popdist.engine.meet.group_name import Keys
from popdist.engine.meet.members import Roster
from popdist.engine.meet.messages import (
    BEGIN,
    NOTICE,
    OTHER_USER,
    READY,
    REFUSAL,
    WELCOME,
    Hello,
    MalformedMessageError,
    Member,
    decode_refusal,
    encode_members,
    encode_ranks,
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

# How many connections without a hello may be open, and how many of them may come from
# processes of other users. One more closes the oldest.
_MOST_UNNAMED = 64
_MOST_OF_OTHERS = 16
# For how many seconds an address may be bound without accepting connections.
_OCCUPIED = 0.5
# For how many seconds members that connect after a failure are answered, and after how
# many to check whether that is still wanted.
LINGER = 5.0
_LOOK = 0.1

# The leaders of failed meetings that still listen, by their addresses.
_lingering: "dict[bytes, Leader]" = {}


class Leader:
    """Member 0, from the first hello until all have met."""

    def __init__(
        self, keys: Keys, hello: Hello, deadline: Deadline, roster: Roster
    ) -> None:
        self._keys = keys
        self._hello = hello
        self._deadline = deadline
        self._roster = roster
        self._members = {0: hello.member}
        self._joiners: dict[int, Connection] = {}
        self._connections: dict[int, Connection] = {}
        # The processes of members that know of this meeting, and how many are expected.
        self._came: set[int] = set()
        self._expected = hello.size - 1
        self._poll = select.poll()
        # After a failure: its message, and the thread that sends it to late members.
        self._failure = b""
        self._late: Thread | None = None
        if (earlier := _lingering.pop(keys.address, None)) is not None:
            earlier.stop_answering()
        try:
            self._listener = listen(keys.address, hello.size)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise self._occupied() from error
        self._poll.register(self._listener, select.POLLIN)
        for pidfd in roster.pidfds:
            if pidfd >= 0:
                self._poll.register(pidfd, select.POLLIN)

    def collect(self) -> list[Member]:
        """Wait until all have connected, and return them in the order of ranks."""
        while missing := self._missing():
            for connection, message in self._receive(missing):
                raise self._malformed(connection, f"{message[:20]!r}")
        return [self._members[rank] for rank in sorted(self._members)]

    def welcome(self, fds: Sequence[int]) -> None:
        """Send the table of members and the file descriptors to all."""
        # The listener ends before any member goes on: those that meet once more under
        # this name are not to come to the old place.
        self._poll.unregister(self._listener)
        self._listener.close()
        self._refuse_others()
        members = [self._members[rank] for rank in sorted(self._members)]
        table = encode_members(members)
        for connection in self._joiners.values():
            self._send(connection, WELCOME + bytes([len(fds)]) + table, fds)

    def begin(self) -> None:
        """Wait until all have taken over what they share, and release them."""
        missing = sorted(self._joiners)
        while missing:
            for connection, message in self._receive(missing):
                if message != READY or connection.rank not in missing:
                    raise self._malformed(connection, f"{message[:20]!r}")
                missing.remove(connection.rank)
        # From here on the meeting has succeeded. The end of a member is now
        # detected by its pidfd, by all members in the same way.
        for connection in self._joiners.values():
            _send_if_there(connection, BEGIN)

    def reason(self, error: PeerLostError) -> PopdistError:
        """Return the error that a lost member has sent before its end, if it has."""
        try:
            for rank, connection in self._joiners.items():
                while self._roster.instances[rank] in error.instances:
                    self._receive_from(connection)
        except PopdistError as reason:
            return reason
        except BlockingIOError:  # a process that it has started has its connection
            pass
        return error

    def refuse(self, error: PopdistError) -> None:
        """Send all, also those that connect later, why the meeting fails."""
        message = REFUSAL + encode_refusal(error)
        for connection in self._connections.values():
            # A process of another user expects the answer to its hello instead.
            if connection.uid == os.geteuid():
                _send_if_there(connection, message)
        if isinstance(error, CollectiveTimeoutError):
            return
        if isinstance(error, PeerLostError) and self._all_see(error.instances):
            return
        if self._listener.fileno() >= 0 and len(self._came) < self._expected:
            self._answer_late_members(message)

    def close(self) -> None:
        """Close all connections, unless a thread answers late members by them."""
        if self._late is None:
            self._close_all()

    def _close_all(self) -> None:
        self._listener.close()
        for connection in self._connections.values():
            connection.close()

    def _answer_late_members(self, failure: bytes) -> None:
        """Answer members that connect after a failure, in a thread of its own.

        They would wait for member 0 until their timeout otherwise.
        """
        self._failure = failure
        for connection in list(self._connections.values()):
            # The hellos of the others are still to be read, and counted.
            if connection.rank is not None:
                self._drop(connection)
        # With the launcher's file, late ones see for themselves who has ended.
        daemon = bool(self._roster.ended_file)
        self._late = Thread(target=self._answer_until_all_know, daemon=daemon)
        self._late.start()
        _lingering[self._keys.address] = self

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
        pairs = zip(self._roster.instances, self._roster.pidfds, strict=True)
        return set(lost) <= {instance for instance, pidfd in pairs if pidfd >= 0}

    def _receive(self, missing: Sequence[int]) -> list[tuple[Connection, bytes]]:
        """Wait, and return the messages of members. Raise if one has ended."""
        wait = self._roster.wait(self._deadline.left())
        events = self._poll.poll(wait * 1000)
        stalled = self._deadline.stalled
        self._deadline.check(lambda: self._roster.name(missing))
        if self._deadline.stalled and not stalled:
            for connection in self._joiners.values():
                self._send(connection, NOTICE + encode_ranks(missing))
        descriptors = [d for d, _ in events if d not in self._roster.pidfds]
        if events and not descriptors:
            # A member may have sent the reason before it ended: by now it is received.
            self._roster.check()
        if not events and self._roster.ended_file:
            self._roster.check_file()
        return [message for one in descriptors for message in self._take(one)]

    def _take(self, descriptor: int) -> list[tuple[Connection, bytes]]:
        """Accept a connection, or return the message that has arrived from a member."""
        if descriptor == self._listener.fileno():
            self._accept()
        elif descriptor in self._connections:
            return self._receive_from(self._connections[descriptor])
        return []

    def _receive_from(self, connection: Connection) -> list[tuple[Connection, bytes]]:
        try:
            message, fds = connection.receive()
        except ConnectionError:
            message, fds = b"", []
        for fd in fds:
            os.close(fd)
        if connection.rank is None:
            self._admit(connection, message)
            return []
        if not message:
            raise self._lost(connection)
        if message[:1] != REFUSAL:
            return [(connection, message)]
        raise self._refusal(connection, message[1:])

    def _accept(self) -> None:
        connection = accept(self._listener)
        other = connection.uid != os.geteuid()
        # An abstract address is open to all users, and whatever looks at sockets.
        unnamed = [
            one
            for one in self._connections.values()
            if one.rank is None and (one.uid != os.geteuid()) == other
        ]
        if len(unnamed) >= (_MOST_OF_OTHERS if other else _MOST_UNNAMED):
            self._drop(unnamed[0])
        self._connections[connection.fileno()] = connection
        self._poll.register(connection, select.POLLIN)

    def _admit(self, connection: Connection, message: bytes) -> None:
        """Accept a process as a member if its first message proves that it is one."""
        proof = REFUSAL + self._keys.proof
        if message.startswith(proof) and connection.uid == os.geteuid():
            # A member that cannot take part, or knows another process as member 0.
            self._came.add(connection.pid)
            raise self._refusal(connection, message[len(proof) :])
        hello = Hello.decode(message)
        if hello is None or hello.proof != self._keys.proof:
            self._drop(connection)
            return
        if connection.uid != os.geteuid():
            # One that has waited too long for the answer connects once more.
            if _send_if_there(connection, OTHER_USER + self._keys.answer):
                self._came.add(connection.pid)
            self._drop(connection)
            raise self._roster.other_user(hello.rank or None, connection, 0)
        if self._failure:
            self._came.add(connection.pid)
            _send_if_there(connection, self._failure)
            self._drop(connection)
            return
        if false := self._roster.objection(hello.rank, connection.pid):
            # The refusal is for it alone: the real one is still to connect.
            _send_if_there(connection, REFUSAL + encode_refusal(MismatchError(false)))
            self._drop(connection)
            return
        self._came.add(connection.pid)
        self._expected = max(self._expected, hello.size - 1)
        objection = hello.objection(self._hello, connection.pid, self._roster.instances)
        if objection is None and hello.rank in self._members:
            objection = (
                f"Processes {self._members[hello.rank].pid} and {connection.pid} both "
                f"say that they are {self._roster.name([hello.rank])} of this group. "
                "Give each process of the group a rank of its own."
            )
        if objection is not None:
            raise MismatchError(objection)
        connection.rank = hello.rank
        self._joiners[hello.rank] = connection
        self._members[hello.rank] = hello.member
        if self._deadline.stalled:
            self._send(connection, NOTICE + encode_ranks(self._missing() or [0]))

    def _occupied(self) -> ArenaError:
        """Return the error for an address at which another process listens."""
        until = monotonic() + _OCCUPIED
        while (other := connect(self._keys.address)) is None and monotonic() < until:
            sleep(0.01)
        socket = self._keys.address[1:].decode()
        me = self._roster.name([0])
        if other is None:
            return ArenaError(
                f"{me.capitalize()} cannot listen at the socket {socket!r}: another "
                "process holds it and accepts no connections. Start the job again."
            )
        other.close()
        if other.uid != os.geteuid():
            return ArenaError(
                f"{me.capitalize()} cannot listen at the socket {socket!r}: process "
                f"{other.pid} of user {other.uid} does. Start all instances as the "
                "same user, and the job again."
            )
        return ArenaError(
            f"The socket {socket!r} is in use: process {other.pid} is already {me} of "
            "this group. Start one process for each instance."
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
                _send_if_there(connection, REFUSAL + encode_refusal(error))
                self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self._poll.unregister(connection)
        del self._connections[connection.fileno()]
        connection.close()

    def _send(
        self, connection: Connection, message: bytes, fds: Sequence[int] = ()
    ) -> None:
        try:
            connection.send(message, fds)
        except ConnectionError as error:
            raise self._lost(connection) from error

    def _lost(self, connection: Connection) -> PeerLostError:
        assert connection.rank is not None
        return lost(self._roster.instances[connection.rank], connection.pid)

    def _refusal(self, connection: Connection, message: bytes) -> PopdistError:
        try:
            return decode_refusal(message)
        except MalformedMessageError as error:
            return self._malformed(connection, str(error))

    def _malformed(self, connection: Connection, what: str) -> MismatchError:
        return self._roster.malformed(connection.rank, connection, 0, what)


def _send_if_there(connection: Connection, message: bytes) -> bool:
    """Send a message, and return whether the peer has not closed its end."""
    try:
        connection.send(message)
    except ConnectionError:
        return False
    return True
