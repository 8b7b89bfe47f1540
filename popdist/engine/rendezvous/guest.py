"""The part of every member but the first in a meeting: it comes and asks to enter."""

import os
import select
from collections.abc import Sequence
from contextlib import closing, suppress
from time import sleep

from popdist.engine.rendezvous.connection import Connection, connect
from popdist.engine.rendezvous.messages import (
    BEGIN,
    NOTICE,
    READY,
    REFUSAL,
    WELCOME,
    Hello,
    Member,
    decode_members,
    decode_ranks,
    decode_refusal,
    encode_refusal,
)
from popdist.engine.rendezvous.patience import Patience
from popdist.engine.rendezvous.roster import Roster
from popdist.errors import ArenaError, MismatchError, PeerLostError, PopdistError

# How many seconds a member sleeps until it looks again whether member 0 listens.
_SHORTEST_NAP = 0.0002
_LONGEST_NAP = 0.02


class Guest:
    """A member that has found member 0, up to the word to begin."""

    def __init__(
        self, address: bytes, hello: Hello, patience: Patience, roster: Roster
    ) -> None:
        """Wait until member 0 listens, and introduce this member to it."""
        self._roster = roster
        self._me = roster.name([hello.rank])
        self._host = roster.name([0])
        self._patience = patience
        # Whom this member waits for, as far as it knows.
        self._missing: Sequence[int] = (0,)
        self._connection = self._find(address)
        self._poll = select.poll()
        self._poll.register(self._connection, select.POLLIN)
        self._say(hello.encode())

    def enter(self) -> tuple[list[int], list[Member]]:
        """Wait until all have come, and return what they share and who they are."""
        message, fds = self._hear(WELCOME)
        count, table = message[0], message[1:]
        if len(fds) == count:
            return fds, decode_members(table)
        for fd in fds:
            os.close(fd)
        error = ArenaError(
            f"{self._me.capitalize()} could take over only {len(fds)} of {count} file "
            f"descriptors of {self._host}. Raise its limit of open files (ulimit -n)."
        )
        self.refuse(error)
        raise error

    def begin(self) -> None:
        """Say that this member is ready, and wait until all are."""
        self._say(READY)
        self._hear(BEGIN)

    def refuse(self, error: PopdistError) -> None:
        """Tell member 0, and through it all others, why it fails."""
        self._say(REFUSAL + encode_refusal(error))

    def close(self) -> None:
        self._connection.close()

    def _find(self, address: bytes) -> Connection:
        nap = _SHORTEST_NAP
        while (connection := self._connect(address)) is None:
            sleep(min(nap, self._patience.left()))
            nap = min(nap * 1.5, _LONGEST_NAP)
            # As long as nobody listens, no member has a right to have ended. Once
            # this one has member 0, that one looks after all others.
            self._roster.check()
            self._check()
        if connection.uid == os.geteuid():
            return connection
        connection.close()
        raise ArenaError(
            f"Process {connection.pid} of user {connection.uid} listens where "
            f"{self._host} should, but {self._me} belongs to user "
            f"{os.geteuid()}. Start all instances as the same user."
        )

    def _connect(self, address: bytes) -> Connection | None:
        """Return a connection to member 0, or None while that does not listen."""
        connection = connect(address)
        if connection is None:
            return None
        false = self._roster.objection(0, connection.pid)
        if false is None or connection.uid != os.geteuid():
            return connection
        with closing(connection):
            # Something else listens in its place. That one is told, and nobody else.
            error = MismatchError(false)
            with suppress(ConnectionError):
                connection.send(REFUSAL + encode_refusal(error))
        return None

    def _say(self, message: bytes) -> None:
        try:
            self._connection.send(message)
        except ConnectionError:
            # Member 0 has ended, or has refused this member without hearing it. What
            # it said last is still there to be heard, and says which.
            return

    def _hear(self, letter: bytes) -> tuple[bytes, list[int]]:
        while True:
            if not self._poll.poll(self._patience.left() * 1000):
                self._check()
                continue
            message, fds = self._connection.receive()
            if not message:
                # Member 0 may have given up because of another one.
                self._roster.check()
                raise PeerLostError(
                    f"{self._host.capitalize()} (process {self._connection.pid}) "
                    "ended or gave up while the instances met. Look above for what it "
                    "said last.",
                    (self._roster.instances[0],),
                )
            if message[:1] == REFUSAL:
                raise decode_refusal(message[1:])
            if message[:1] == letter:
                return message[1:], fds
            if message[:1] == NOTICE:
                self._missing = decode_ranks(message[1:])
                self._patience.stalled = True

    def _check(self) -> None:
        self._patience.check(lambda: self._roster.name(self._missing))
