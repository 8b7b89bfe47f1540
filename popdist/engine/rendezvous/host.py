"""The part of member 0 in a meeting: it listens, checks, welcomes and tells."""

import errno
import os
import select
from collections.abc import Sequence
from time import monotonic

from popdist.engine.rendezvous.connection import Connection, accept, listen
from popdist.engine.rendezvous.messages import (
    BEGIN,
    NOTICE,
    READY,
    REFUSAL,
    WELCOME,
    Hello,
    Member,
    decode_refusal,
    encode_members,
    encode_ranks,
    encode_refusal,
)
from popdist.engine.rendezvous.patience import Patience
from popdist.engine.rendezvous.roster import Roster
from popdist.errors import (
    ArenaError,
    CollectiveTimeoutError,
    MismatchError,
    PeerLostError,
    PopdistError,
)

# After a failure, how many seconds member 0 stays for those that have not come yet.
# They would wait in vain for it otherwise.
_LINGER = 5.0


class Host:
    """The meeting place, from the first hello to the last word."""

    def __init__(
        self, address: bytes, hello: Hello, patience: Patience, roster: Roster
    ) -> None:
        self._hello = hello
        self._patience = patience
        self._roster = roster
        self._members = {0: hello.member}
        self._guests: dict[int, Connection] = {}
        self._connections: dict[int, Connection] = {}
        # How many processes have come, and how many are there to come.
        self._came = 0
        self._expected = hello.size - 1
        self._poll = select.poll()
        try:
            self._listener = listen(address, hello.size)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            place = address[1:].decode(errors="replace")
            raise ArenaError(
                f"The socket {place!r} is in use: another process is already "
                f"{roster.name([0])} of this group. Start one process for each "
                "instance."
            ) from error
        self._poll.register(self._listener, select.POLLIN)
        for pidfd in roster.pidfds:
            if pidfd >= 0:
                self._poll.register(pidfd, select.POLLIN)

    def collect(self) -> list[Member]:
        """Wait until all have come, and return them in the order of their ranks."""
        while missing := self._missing():
            for connection, message in self._hear(missing):
                self._admit(connection, message)
        return [self._members[rank] for rank in sorted(self._members)]

    def welcome(self, fds: Sequence[int]) -> None:
        """Send the table of members and the file descriptors to all."""
        # The listener ends before anybody goes on: those that meet once more under
        # this name are not to come to the old place.
        self._poll.unregister(self._listener)
        self._listener.close()
        self._send_away_strangers()
        members = [self._members[rank] for rank in sorted(self._members)]
        table = encode_members(members)
        for connection in self._guests.values():
            self._send(connection, WELCOME + bytes([len(fds)]) + table, fds)

    def begin(self) -> None:
        """Wait until all have taken over what they share, and let them go."""
        missing = sorted(self._guests)
        while missing:
            for connection, message in self._hear(missing):
                if message == READY and connection.rank in missing:
                    missing.remove(connection.rank)
        # From here on the meeting has succeeded. Who ends now is missed by its pidfd,
        # by all in the same way.
        for connection in self._guests.values():
            _send_if_there(connection, BEGIN)

    def refuse(self, error: PopdistError) -> None:
        """Tell all that have come, and those that still come, why it fails."""
        message = REFUSAL + encode_refusal(error)
        for connection in self._connections.values():
            _send_if_there(connection, message)
        if isinstance(error, CollectiveTimeoutError):
            return
        if isinstance(error, PeerLostError) and self._all_see(error.instances):
            return
        if self._listener.fileno() >= 0:
            self._refuse_late_ones(message)

    def close(self) -> None:
        self._listener.close()
        for connection in self._connections.values():
            connection.close()

    def _all_see(self, lost: Sequence[int]) -> bool:
        """Return whether those that come later see for themselves who is lost."""
        found = zip(self._roster.instances, self._roster.pidfds, strict=True)
        return set(lost) <= {instance for instance, pidfd in found if pidfd >= 0}

    def _refuse_late_ones(self, message: bytes) -> None:
        late = select.poll()
        late.register(self._listener, select.POLLIN)
        until = monotonic() + _LINGER
        while self._came < self._expected and (left := until - monotonic()) > 0:
            if late.poll(left * 1000) and (connection := self._accept()):
                _send_if_there(connection, message)

    def _hear(self, missing: Sequence[int]) -> list[tuple[Connection, bytes]]:
        """Return what was said, after a wait. Raises when somebody has ended."""
        events = self._poll.poll(self._patience.left() * 1000)
        stalled = self._patience.stalled
        self._patience.check(lambda: self._roster.name(missing))
        if self._patience.stalled and not stalled:
            for connection in self._guests.values():
                self._send(connection, NOTICE + encode_ranks(missing))
        heard = []
        descriptors = [d for d, _ in events if d not in self._roster.pidfds]
        if events and not descriptors:
            # Whoever has ended may have said why before, and has been heard by now.
            self._roster.check()
        for descriptor in descriptors:
            if descriptor == self._listener.fileno():
                self._accept()
                continue
            connection = self._connections[descriptor]
            message, fds = connection.receive()
            for fd in fds:
                os.close(fd)
            if not message:
                raise self._lost(connection)
            if message[:1] == REFUSAL:
                raise decode_refusal(message[1:])
            heard.append((connection, message))
        return heard

    def _accept(self) -> Connection | None:
        connection = accept(self._listener)
        if connection.uid != os.geteuid():
            # An abstract address is open to all users. This one is no member.
            connection.close()
            return None
        self._came += 1
        self._connections[connection.fileno()] = connection
        self._poll.register(connection, select.POLLIN)
        return connection

    def _admit(self, connection: Connection, message: bytes) -> None:
        hello = Hello.decode(message)
        if hello is None:
            self._came -= 1
            self._drop(connection)
            return
        if false := self._roster.objection(hello.rank, connection.pid):
            # It alone is told: the real one is still to come.
            self._came -= 1
            _send_if_there(connection, REFUSAL + encode_refusal(MismatchError(false)))
            self._drop(connection)
            return
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
        self._guests[hello.rank] = connection
        self._members[hello.rank] = hello.member
        if self._patience.stalled:
            self._send(connection, NOTICE + encode_ranks(self._missing() or [0]))

    def _missing(self) -> list[int]:
        return [r for r in range(self._hello.size) if r not in self._members]

    def _send_away_strangers(self) -> None:
        error = MismatchError(
            f"All {self._hello.size} instances of this group have come already, and "
            "this process is one more. Start one process for each instance."
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
        rank, pid = connection.rank, connection.pid
        if rank is None:
            return PeerLostError(
                f"Process {pid} ended or gave up while the instances met, before it "
                "said which of them it is. Look above for what it said last.",
                (),
            )
        return PeerLostError(
            f"Instance {self._roster.instances[rank]} (process {pid}) ended or gave up "
            "while the instances met. Look above for what it said last.",
            (self._roster.instances[rank],),
        )


def _send_if_there(connection: Connection, message: bytes) -> None:
    try:
        connection.send(message)
    except ConnectionError:
        # It has ended, so it need not be told.
        return
