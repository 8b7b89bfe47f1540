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
    """A thread that answers late members of a failed meeting, at its address."""

    def __init__(
        self,
        keys: Keys,
        listener: _socket.socket,
        answer: bytes,
        expected: int,
        came: set[int],
        unnamed: Sequence[Connection],
    ) -> None:
        """Take over the listener of member 0.

        Args:
            keys: The meeting's keys.
            answer: The message to each late member.
            expected: How many members there are besides member 0.
            came: The pids of members that know of the failure; this adds to it.
            unnamed: Connections without a hello so far; some may belong to members.
        """
        self._keys = keys
        self._listener = listener
        self._answer = answer
        self._expected = expected
        self._came = came
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
            while self._is_wanted() and monotonic() < until:
                for descriptor, _ in poll.poll(_LOOK * 1000):
                    if descriptor in connections:
                        poll.unregister(descriptor)
                        self._receive(connections.pop(descriptor))
                    else:
                        connection = accept(self._listener)
                        connections[connection.fileno()] = connection
                        poll.register(connection, select.POLLIN)
        except OSError:
            # Out of file descriptors, say. Members that connect now get no answer.
            return
        finally:
            self._listener.close()
            for connection in connections.values():
                connection.close()

    def _is_wanted(self) -> bool:
        return self._wanted and len(self._came) < self._expected

    def _receive(self, connection: Connection) -> None:
        try:
            message, fds = connection.receive()
            for fd in fds:
                os.close(fd)
            if message.startswith(REFUSAL + self._keys.proof):
                self._came.add(connection.pid)  # It raises its own error.
                return
            hello = Hello.decode(message)
            if hello is not None and hello.proof == self._keys.proof:
                self._send_answer(connection)
        except ConnectionError:
            # It needs no answer: it has ended, or connects once more.
            return
        finally:
            connection.close()

    def _send_answer(self, connection: Connection) -> None:
        if connection.uid == os.geteuid():
            self._came.add(connection.pid)
            connection.send(self._answer)
            return
        connection.send(OTHER_USER + self._keys.answer)
        # Not before: one that has waited too long for the answer connects once more.
        self._came.add(connection.pid)


def free_address(address: bytes) -> None:
    """End what this process says at an address, for another meeting there."""
    late = _running.pop(address, None)
    if late is not None:
        late.end()
