"""The connection of this process to the poprun that has started it.

Its messages are those of poprun/wire/protocol.py, which popdist does not import.
"""

import os
import socket
import struct
from collections.abc import Mapping

from popdist.environment import CONTROL

VERSION = 1
# The longest message that poprun sends: variables of an environment.
LONGEST_MESSAGE = 1 << 20
_ENDED = "it has ended, or does not know this job"

Message = tuple[int, list[bytes]]


class ControlConnection:
    """A connection to poprun. Its first message contains the version and the key.

    Methods raise OSError with a phrase for the user, in which poprun is "it".
    """

    def __init__(self, environ: Mapping[str, str], timeout: float) -> None:
        """Connect, and check that poprun listens.

        Args:
            timeout: For how many seconds poprun may take no bytes, or send none.
        """
        name, _, self.key = os.fsencode(environ[CONTROL]).partition(b"/")
        self._timeout = timeout
        self._received = bytearray()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(self._timeout)
            self._socket.connect(b"\0" + name[1:])
            self._check_user()
        except BaseException:
            self._socket.close()
            raise

    def send(self, kind: int, *fields: bytes | int) -> None:
        """Send a message."""
        self._socket.settimeout(self._timeout)
        try:
            self._socket.sendall(pack(kind, *fields))
        except (BrokenPipeError, ConnectionResetError):
            raise ConnectionResetError(0, _ENDED) from None

    def receive(self) -> Message:
        """Wait for the next message, and return it."""
        self._socket.settimeout(self._timeout)
        while (message := self._next()) is None:
            self._feed(self._socket.recv(1 << 16))
        return message

    def take(self) -> Message | None:
        """Return the next message if it has come. Never blocks."""
        while (message := self._next()) is None:
            try:
                self._socket.setblocking(False)
                self._feed(self._socket.recv(1 << 16))
            except BlockingIOError:
                return None
        return message

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def detach(self) -> int:
        """Return the descriptor, which stays open until the process ends."""
        return self._socket.detach()

    def _check_user(self) -> None:
        """Check that poprun listens: when it is dead, any user can under its name."""
        size = struct.calcsize("3i")
        option = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        _, user, _ = struct.unpack("3i", option)
        if user != os.geteuid():
            raise PermissionError(0, f"its socket belongs to user {user}")

    def _feed(self, data: bytes) -> None:
        if not data:
            raise ConnectionResetError(0, _ENDED)
        self._received += data

    def _next(self) -> Message | None:
        """Return a message whose bytes have all come, None if there is none."""
        if len(self._received) < 4:
            return None
        length = int.from_bytes(self._received[:4], "big")
        if not 1 <= length <= LONGEST_MESSAGE:
            raise OSError(0, "its answer is not valid")
        if len(self._received) < 4 + length:
            return None
        message = bytes(self._received[4 : 4 + length])
        del self._received[: 4 + length]
        return message[0], _fields_of(message)


def pack(kind: int, *fields: bytes | int) -> bytes:
    """Return one message; whole numbers are written in decimal."""
    body = bytes([kind])
    for field in fields:
        data = b"%d" % field if isinstance(field, int) else field
        body += len(data).to_bytes(4, "big") + data
    return len(body).to_bytes(4, "big") + body


def _fields_of(message: bytes) -> list[bytes]:
    fields, at = [], 1
    while at < len(message):
        end = at + 4 + int.from_bytes(message[at : at + 4], "big")
        if end > len(message):
            raise OSError(0, "its answer is not valid")
        fields.append(message[at + 4 : end])
        at = end
    return fields
