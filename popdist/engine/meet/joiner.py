"""The joiner's part of a meeting: it connects to the leader and follows it."""

import os
import select
from collections.abc import Sequence
from contextlib import closing
from time import monotonic, sleep

from popdist.engine.meet.connection import Connection, connect
from popdist.engine.meet.group_name import address_of
from popdist.engine.meet.meeting import Meeting
from popdist.engine.meet.messages import (
    BEGIN,
    HELLO,
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
from popdist.errors import ArenaError, MismatchError, PeerLostError, PopdistError

# How many seconds a member sleeps until it looks again whether member 0 listens.
_SHORTEST_PAUSE = 0.0002
_LONGEST_PAUSE = 0.02


class Joiner:
    """A member that is connected to the leader, until all have met."""

    def __init__(
        self, meeting: Meeting, hello: Hello, trouble: PopdistError | None = None
    ) -> None:
        """Wait until the leader listens, and send it a hello.

        Args:
            trouble: The error to send in place of the hello, and to raise.
        """
        self._meeting = meeting
        self._deadline = meeting.deadline()
        # The members that have not connected yet, as far as this one knows.
        self._missing: Sequence[int] = (0,)
        self._connection = self._find()
        self._connection.rank = 0
        self._poll = select.poll()
        self._poll.register(self._connection, select.POLLIN)
        # If member 0 has refused this member without reading its message, the reason
        # can still be received.
        if trouble is not None:
            with closing(self._connection):
                self.refuse(trouble)
            raise trouble
        self._connection.send(HELLO, hello._asdict())

    def enter(self) -> tuple[int, list[Member]]:
        """Wait until all have connected; return what they share, and all members."""
        message = self._receive(WELCOME)
        try:
            members = [Member(pid, started) for pid, started in message.value]
            if len(members) == self._meeting.size and message.fd is not None:
                return message.fd, members
            error: PopdistError = ArenaError(
                f"{self._meeting.own_name} could not take over the file descriptor of "
                f"{self._meeting.name_of([0])}. Raise its limit of open files "
                "(ulimit -n)."
            )
        except INVALID:
            error = self._meeting.malformed(self._connection, message.packet)
        if message.fd is not None:
            os.close(message.fd)
        self.refuse(error)
        raise error

    def begin(self) -> None:
        """Send that this member is ready, and wait until all are."""
        self._connection.send(READY)
        self._receive(BEGIN)

    def reason(self, error: PeerLostError) -> PopdistError:
        """Wait for the error that all get after one is lost, and return it.

        That one may have ended because of another error. The leader has been sent this
        member's, and sends all the first that it has got.
        """
        try:
            self._receive(BEGIN)
        except PopdistError as reason:
            return reason
        return error

    def refuse(self, error: PopdistError) -> None:
        """Send the leader, and through it all others, why the meeting fails."""
        self._connection.send(REFUSAL, encode_refusal(error))

    def close(self) -> None:
        self._connection.close()

    def _find(self) -> Connection:
        """Return a connection to the leader, once it listens."""
        pause = _SHORTEST_PAUSE
        looked = monotonic()
        while (leader := self._connect()) is None:
            sleep(min(pause, self._deadline.left()))
            pause = min(pause * 1.5, _LONGEST_PAUSE)
            # Watch all members until one listens. Once this member is connected to
            # member 0, that member watches the others.
            self._meeting.check()
            if monotonic() - looked >= self._meeting.wait(1.0):
                looked = monotonic()
                self._meeting.check_file()
            self._check()
        return leader

    def _connect(self) -> Connection | None:
        """Return what `_find` does, or None while the leader does not listen.

        Raises:
            ArenaError: A process of another user listens in its place.
        """
        name = self._meeting.name
        text = name if isinstance(name, str) else name()
        connection = None if text is None else connect(address_of(text))
        if connection is None:
            return None
        if not connection.is_of_this_user:
            connection.close()
            raise ArenaError(
                f"Process {connection.pid} of user {connection.uid} listens where "
                f"{self._meeting.name_of([0])} should, but "
                f"{self._meeting.own_name.lower()} belongs to user {os.geteuid()}. "
                "Start all instances as the same user, and the job again."
            )
        false = self._meeting.objection(0, connection.pid)
        if false is None:
            return connection
        # Another process listens in its place. Only that one gets the error.
        with closing(connection):
            connection.send(REFUSAL, encode_refusal(MismatchError(false)))
        return None

    def _receive(self, wanted: str) -> MeetingMessage:
        while True:
            if not self._poll.poll(self._deadline.left() * 1000):
                self._check()
                continue
            message = self._connection.receive(with_fd=wanted == WELCOME)
            if not message.packet:
                # Member 0 may have given up because of another one.
                self._meeting.check()
                self._meeting.check_file()
                raise lost(self._meeting.instances[0], self._connection.pid)
            if message.kind == wanted:
                return message
            try:
                error = self._error_in(message)
            except INVALID:
                error = self._meeting.malformed(self._connection, message.packet)
            if error is not None:
                raise error

    def _error_in(self, message: MeetingMessage) -> PopdistError | None:
        """Use a message that was not waited for, or return the error to raise.

        Raises:
            LookupError, TypeError, ValueError: The message is not valid.
        """
        if message.kind == REFUSAL:
            return decode_refusal(message.value)
        if message.kind != MISSING or not message.value:
            raise ValueError
        # They are in the range of ranks.
        self._meeting.name_of(message.value)
        self._missing = message.value
        self._deadline.stalled = True
        return None

    def _check(self) -> None:
        self._deadline.check(lambda: self._meeting.name_of(self._missing))
