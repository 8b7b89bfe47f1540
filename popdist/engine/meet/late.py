"""Answers to members that connect after their meeting has failed: why it did.

They would wait for the leader until their timeout otherwise.
"""

import _socket
import os
import select
from collections.abc import Sequence
from threading import Thread
from time import monotonic

from popdist.engine.meet.connection import Connection, accept
from popdist.engine.meet.group_name import Keys
from popdist.engine.meet.messages import OTHER_USER, REFUSAL, Hello

# For how many seconds, and after how many to look whether to stop.
LINGER = 5.0
_LOOK = 0.1

_running: "dict[bytes, LateMembers]" = {}


class LateMembers:
    """A thread that answers at the address of a meeting that has failed."""

    def __init__(
        self,
        keys: Keys,
        listener: _socket.socket,
        answer: bytes,
        expected: int,
        unnamed: Sequence[Connection],
    ) -> None:
        """Take over the listener of member 0.

        Args:
            keys: Those of the meeting.
            answer: The message to each of them.
            expected: How many members have not come yet.
            unnamed: Connections of which some may be those members'.
        """
        self._keys = keys
        self._listener = listener
        self._answer = answer
        self._expected = expected
        self._unnamed = unnamed
        self._wanted = True

    def start(self, daemon: bool) -> None:
        """Begin to answer, until all have come or some seconds have passed.

        Args:
            daemon: Whether the process may end meanwhile.
        """
        self._thread = Thread(target=self._run, daemon=daemon)
        self._thread.start()
        _running[self._keys.address] = self

    def end(self) -> None:
        """Answer no more, and free the address."""
        self._wanted = False
        self._thread.join()

    def _run(self) -> None:
        connections = {one.fileno(): one for one in self._unnamed}
        poll = select.poll()
        for descriptor in connections:
            poll.register(descriptor, select.POLLIN)
        poll.register(self._listener, select.POLLIN)
        until = monotonic() + LINGER
        try:
            while self._wanted and self._expected > 0 and monotonic() < until:
                for descriptor, _ in poll.poll(_LOOK * 1000):
                    if descriptor in connections:
                        poll.unregister(descriptor)
                        self._receive(connections.pop(descriptor))
                    else:
                        connection = accept(self._listener)
                        connections[connection.fileno()] = connection
                        poll.register(connection, select.POLLIN)
        except OSError:
            # Out of file descriptors, say. Those that come now learn nothing here.
            return
        finally:
            self._listener.close()
            for connection in connections.values():
                connection.close()

    def _receive(self, connection: Connection) -> None:
        try:
            message, fds = connection.receive()
            for fd in fds:
                os.close(fd)
            if message.startswith(REFUSAL + self._keys.proof):
                self._expected -= 1  # It has an error of its own.
                return
            hello = Hello.decode(message)
            if hello is not None and hello.proof == self._keys.proof:
                self._expected -= 1
                same = connection.uid == os.geteuid()
                other = OTHER_USER + self._keys.answer
                connection.send(self._answer if same else other)
        except ConnectionError:
            # It has ended, so it needs no message.
            return
        finally:
            connection.close()


def free_address(address: bytes) -> None:
    """End what this process says at an address, for another meeting there."""
    late = _running.pop(address, None)
    if late is not None:
        late.end()
