"""One end of a connection between poprun, its helpers and its agents.

It carries whole messages, and on a unix socket the descriptors that come with them; it
never waits. Shims and the guard use it too, so it imports next to nothing.
"""

import _socket
import errno
import os
import sys

from poprun.wire import protocol

# More descriptors than any message brings.
MOST_DESCRIPTORS = 4
# How much is read at once.
PIECE = 1 << 16


class Channel:
    """A socket that is read and written only as far as it goes at once.

    Args:
        limit: The longest message that the peer may send.
    """

    def __init__(self, sock: _socket.socket, limit: int = protocol.MAX_LENGTH) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._begin(limit)

    def _begin(self, limit: int) -> None:
        # Received descriptors that have not been taken: they come with the first byte
        # of their message, which may be long before its last. Some may be missing: the
        # kernel drops those that this process has no number left for.
        self.descriptors: list[int] = []
        self._decoder = protocol.Decoder(limit)
        # Unsent bytes, and duplicates of the caller's descriptors that go with the
        # first of them.
        self._unsent: list[tuple[bytearray, tuple[int, ...]]] = []

    @classmethod
    def of(cls, descriptor: int) -> "Channel":
        """Return the channel of a socket that is known by its descriptor."""
        return cls(_socket.socket(fileno=descriptor))

    def fileno(self) -> int:
        return self.sock.fileno()

    def write_fileno(self) -> int:
        """Return the descriptor to wait for when there are unsent bytes."""
        return self.fileno()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    @property
    def num_unsent(self) -> int:
        """How many bytes have not been sent."""
        return sum(len(message) for message, _ in self._unsent)

    @property
    def is_at_end(self) -> bool:
        """Whether the peer has closed its end, and all that it sent has been read."""
        try:
            return not self.sock.recv(1, _socket.MSG_PEEK | _socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def receive(self) -> list[tuple[int, list[bytes]]] | None:
        """Return the messages that have come; None when the other end is gone."""
        data = self.read()
        if data is None:
            return []
        # More descriptors than its messages can need: the peer would use up ours.
        if not data or len(self.descriptors) > MOST_DESCRIPTORS:
            return None
        try:
            return self.feed(data)
        except ValueError:
            return None

    def read(self) -> bytes | None:
        """Return bytes that have come; None for nothing now, b"" at the end."""
        try:
            return self._read()
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def feed(self, data: bytes) -> list[tuple[int, list[bytes]]]:
        """Add bytes from `read`, and return the messages that are complete now.

        Raises:
            ValueError: They are no messages.
        """
        return self._decoder.feed(data)

    def tell(
        self, kind: int, *fields: bytes | int, descriptors: tuple[int, ...] = ()
    ) -> None:
        """Send a message as `send` does."""
        self.send(protocol.pack(kind, *fields), descriptors)

    def send(self, message: bytes, descriptors: tuple[int, ...] = ()) -> None:
        """Send now what can be sent now; `flush` sends the rest.

        Raises:
            OSError: The message has to wait, and a descriptor cannot be duplicated.
        """
        sent = 0 if self._unsent else self._send(message, descriptors)
        if sent == len(message):
            return
        waiting = () if sent else tuple(os.dup(d) for d in descriptors)
        if self._unsent and not waiting:
            self._unsent[-1][0].extend(message)
        else:
            self._unsent.append((bytearray(message[sent:]), waiting))

    def flush(self) -> None:
        """Send more of what could not be sent at once."""
        while self._unsent:
            message, descriptors = self._unsent[0]
            sent = self._send(message, descriptors)
            if not sent:
                return
            for descriptor in descriptors:
                os.close(descriptor)
            del message[:sent]
            self._unsent[0] = message, ()
            if not message:
                self._unsent.pop(0)

    def _send(self, message: bytes | bytearray, descriptors: tuple[int, ...]) -> int:
        """Return how many bytes of a message have been sent now."""
        try:
            return self._write(message, descriptors)
        except BlockingIOError:
            return 0
        except OSError:  # the peer is gone, as receive says: nothing has to wait
            return len(message)

    def _read(self) -> bytes:
        room = _socket.CMSG_LEN(MOST_DESCRIPTORS * 4)
        data, ancillary, _, _ = self.sock.recvmsg(PIECE, room)
        for _, _, packed in ancillary:
            for at in range(0, len(packed) - 3, 4):
                descriptor = int.from_bytes(packed[at : at + 4], sys.byteorder)
                os.set_inheritable(descriptor, False)
                self.descriptors.append(descriptor)
        return data

    def _write(self, message: bytes | bytearray, descriptors: tuple[int, ...]) -> int:
        packed = b"".join(d.to_bytes(4, sys.byteorder) for d in descriptors)
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)] if packed else []
        return self.sock.sendmsg([message], rights)

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        for _, descriptors in self._unsent:
            for descriptor in descriptors:
                os.close(descriptor)
        self.descriptors.clear()
        self._unsent.clear()
        self._close()

    def _close(self) -> None:
        self.sock.close()


class PipeChannel(Channel):
    """A channel on two descriptors of any kind. It transfers no descriptors."""

    def __init__(self, read: int, write: int) -> None:
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        self._ends = read, write
        self._begin(protocol.MAX_LENGTH)

    def fileno(self) -> int:
        return self._ends[0]

    def write_fileno(self) -> int:
        return self._ends[1]

    def _read(self) -> bytes:
        return os.read(self._ends[0], PIECE)

    def _write(self, message: bytes | bytearray, _: tuple[int, ...]) -> int:
        return os.write(self._ends[1], message)

    def _close(self) -> None:
        for descriptor in self._ends:
            os.close(descriptor)


def connect(control: bytes) -> tuple[_socket.socket, bytes]:
    """Connect to poprun's control socket; return the socket and the key of the job.

    When poprun has died any user can listen under its name, which is not secret. The
    caller would send that user the key, and run any program of that user's. So only a
    listener of the caller's own user is accepted.

    Raises:
        OSError: Nothing listens there.
        PermissionError: Another user's process does.
    """
    address, key = address_and_key(control)
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    try:
        sock.connect(address)
        if (user := peer_of(sock)[1]) != os.geteuid():
            raise PermissionError(
                errno.EPERM,
                f"the control socket belongs to user {user}, not to {os.geteuid()}",
            )
    except OSError:
        sock.close()
        raise
    return sock, key


def listen(control: bytes, backlog: int) -> tuple[_socket.socket, bytes]:
    """Listen at poprun's control socket; return the socket and the key of the job.

    Raises:
        OSError: Another process listens there, or there is no descriptor left.
    """
    address, key = address_and_key(control)
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    sock.bind(address)
    sock.listen(backlog)
    sock.setblocking(False)
    return sock, key


def accept(sock: _socket.socket) -> _socket.socket:
    """Return the next connection to a socket that listens."""
    # typeshed has it in the module socket only.
    descriptor, _ = sock._accept()  # type: ignore[attr-defined]
    return _socket.socket(fileno=descriptor)


def address_and_key(control: bytes) -> tuple[bytes, bytes]:
    """Split "@NAME/KEY". NAME is in /proc/net/unix for all to read, KEY is not."""
    name, _, key = control.partition(b"/")
    return b"\0" + name[1:], key


def peer_of(sock: _socket.socket) -> tuple[int, int]:
    """Return the pid and the user at the other end, as the kernel knows them."""
    credentials = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    pid, user = credentials[:4], credentials[4:8]
    return int.from_bytes(pid, sys.byteorder), int.from_bytes(user, sys.byteorder)
