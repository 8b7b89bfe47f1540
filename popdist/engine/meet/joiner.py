"""The joiner's part of a meeting: it connects to the leader and follows it."""

import os
import select
from collections.abc import Sequence
from contextlib import closing, suppress
from time import monotonic, sleep

from popdist.engine.meet.connection import Connection, connect
from popdist.engine.meet.deadlines import Deadline
from popdist.engine.meet.group_name import GroupName, Keys, keys_of
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
    decode_members,
    decode_ranks,
    decode_refusal,
    encode_refusal,
)
from popdist.engine.meet.pidfds import lost
from popdist.errors import ArenaError, MismatchError, PeerLostError, PopdistError

# How many seconds a member sleeps until it looks again whether member 0 listens.
_SHORTEST_PAUSE = 0.0002
_LONGEST_PAUSE = 0.02
# How many seconds a listening process of another user may take to prove its membership.
_PROOF = 5.0


class Joiner:
    """A member that is connected to the leader, until all have met."""

    def __init__(
        self,
        name: GroupName,
        hello: Hello,
        deadline: Deadline,
        roster: Roster,
        trouble: PopdistError | None = None,
    ) -> None:
        """Wait until the leader listens, and send it a hello.

        Args:
            trouble: The error to send in place of the hello, and to raise.
        """
        self._roster = roster
        self._name = name
        self._hello = hello
        self._me = roster.name([hello.rank])
        self._leader = roster.name([0])
        self._deadline = deadline
        # The members that have not connected yet, as far as this one knows.
        self._missing: Sequence[int] = (0,)
        # A description of a process of another user that listens in place of member 0.
        self._intruder = ""
        self._connection, proof = self._find()
        self._poll = select.poll()
        self._poll.register(self._connection, select.POLLIN)
        if trouble is not None:
            with closing(self._connection):
                self._send(REFUSAL + proof + encode_refusal(trouble))
            raise trouble
        self._send(hello._replace(proof=proof).encode())

    def enter(self) -> tuple[list[int], list[Member]]:
        """Wait until all have connected; return what they share, and all members."""
        message, fds = self._receive(WELCOME)
        count = message[0] if message else -1
        try:
            members = decode_members(message[1:], len(self._roster.instances))
            if len(fds) == count:
                return fds, members
            error: PopdistError = ArenaError(
                f"{self._me.capitalize()} could take over only {len(fds)} of {count} "
                f"file descriptors of {self._leader}. Raise its limit of open files "
                "(ulimit -n)."
            )
        except MalformedMessageError as malformed:
            error = self._malformed(malformed)
        for fd in fds:
            os.close(fd)
        self.refuse(error)
        raise error

    def begin(self) -> None:
        """Send that this member is ready, and wait until all are."""
        self._send(READY)
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
        self._send(REFUSAL + encode_refusal(error))

    def close(self) -> None:
        self._connection.close()

    def _find(self) -> tuple[Connection, bytes]:
        """Return a connection to the leader, and the proof that it expects."""
        pause = _SHORTEST_PAUSE
        looked = monotonic()
        while (leader := self._connect()) is None:
            sleep(min(pause, self._deadline.left()))
            pause = min(pause * 1.5, _LONGEST_PAUSE)
            # Watch all members until one listens. Once this member is connected to
            # member 0, that member watches the others.
            self._roster.check()
            if monotonic() - looked >= self._roster.wait(1.0):
                looked = monotonic()
                self._roster.check_file()
            self._check()
        return leader

    def _connect(self) -> tuple[Connection, bytes] | None:
        """Return what `_find` does, or None while the leader does not listen."""
        name = self._name if isinstance(self._name, str) else self._name()
        if name is None:
            return None
        keys = keys_of(name)
        connection = connect(keys.address)
        if connection is None:
            return None
        if connection.uid != os.geteuid():
            with closing(connection):
                self._check_user(connection, keys)
            return None
        false = self._roster.objection(0, connection.pid)
        if false is None:
            return connection, keys.proof
        with closing(connection):
            # Another process listens in its place. Only that one gets the error.
            error = MismatchError(false)
            with suppress(ConnectionError):
                proof = REFUSAL + keys.proof
                connection.send(proof + encode_refusal(error))
        return None

    def _check_user(self, connection: Connection, keys: Keys) -> None:
        """Raise ArenaError if the leader is another user's process.

        Any user may listen at an abstract address. Only a member knows the proof.
        """
        self._intruder = (
            f" Process {connection.pid} of user {connection.uid} listens where "
            f"{self._leader} should, and is ignored."
        )
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        try:
            connection.send(self._hello._replace(proof=keys.proof).encode())
            if not poll.poll(min(_PROOF, self._deadline.left()) * 1000):
                return
            answer, fds = connection.receive()
        except ConnectionError:
            return
        for fd in fds:
            os.close(fd)
        if answer == OTHER_USER + keys.answer:
            raise self._roster.other_user(0, connection, self._hello.rank)

    def _send(self, message: bytes) -> None:
        try:
            self._connection.send(message)
        except ConnectionError:
            # Member 0 has ended, or has refused this member without reading it. Its
            # last message can still be received, and has the reason.
            return

    def _receive(self, wanted: bytes) -> tuple[bytes, list[int]]:
        while True:
            if not self._poll.poll(self._deadline.left() * 1000):
                self._check()
                continue
            message, fds = self._connection.receive()
            if not message:
                # Member 0 may have given up because of another one.
                self._roster.check()
                self._roster.check_file()
                raise lost(self._roster.instances[0], self._connection.pid)
            kind, rest = message[:1], message[1:]
            if kind != WELCOME or kind != wanted:
                for fd in fds:
                    os.close(fd)
                fds = []
            try:
                if kind == REFUSAL:
                    raise decode_refusal(rest)
                if kind == wanted:
                    return rest, fds
                if kind != NOTICE:
                    raise MalformedMessageError(f"{message[:20]!r}")
                self._missing = self._ranks(rest)
                self._deadline.stalled = True
            except MalformedMessageError as error:
                raise self._malformed(error) from error

    def _ranks(self, message: bytes) -> list[int]:
        ranks = decode_ranks(message)
        if not ranks or max(ranks) >= len(self._roster.instances):
            raise MalformedMessageError(f"the ranks {ranks}")
        return ranks

    def _malformed(self, error: MalformedMessageError) -> MismatchError:
        connection = self._connection
        return self._roster.malformed(0, connection, self._hello.rank, str(error))

    def _check(self) -> None:
        self._deadline.check(
            lambda: self._roster.name(self._missing), remark=self._intruder
        )
