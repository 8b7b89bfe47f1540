"""One end of a unix socket between poprun, its guard and its shims.

Whole messages and the descriptors that come with them; it never waits. Shims and the
guard use it too, so it imports next to nothing.
"""

import _socket
import errno
import os
import sys

from poprun import wire

# More descriptors than any message brings.
MOST_DESCRIPTORS = 4


class Channel:
    """A socket that is read and written only as far as it goes at once."""

    def __init__(self, sock: _socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        # What has come and has not been taken: descriptors come with the first byte
        # of their message, which may be long before its last.
        self.descriptors: list[int] = []
        self._decoder = wire.Decoder()
        self._unsent = b""

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def receive(self) -> list[tuple[int, list[bytes]]] | None:
        """Return the messages that have come; None when the other end is gone."""
        room = _socket.CMSG_LEN(MOST_DESCRIPTORS * 4)
        try:
            data, ancillary, _, _ = self.sock.recvmsg(1 << 16, room)
        except BlockingIOError:
            return []
        except OSError:
            return None
        for _, _, packed in ancillary:
            for at in range(0, len(packed) - 3, 4):
                descriptor = int.from_bytes(packed[at : at + 4], sys.byteorder)
                os.set_inheritable(descriptor, False)
                self.descriptors.append(descriptor)
        if not data:
            return None
        try:
            return self._decoder.feed(data)
        except ValueError:
            return None

    def send(self, message: bytes, descriptors: tuple[int, ...] = ()) -> None:
        """Send now what can be sent now; `flush` sends the rest."""
        if self._unsent and not descriptors:
            self._unsent += message
            return
        packed = b"".join(d.to_bytes(4, sys.byteorder) for d in descriptors)
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)] if packed else []
        try:
            sent = self.sock.sendmsg([message], rights)
        except BlockingIOError:
            sent = 0
        except OSError:  # it is gone; receive says so
            return
        self._unsent = message[sent:]

    def flush(self) -> None:
        """Send more of what could not be sent at once."""
        unsent, self._unsent = self._unsent, b""
        if unsent:
            self.send(unsent)

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()
        self.sock.close()


def connect(control: bytes) -> tuple[_socket.socket, bytes]:
    """Connect to poprun's control socket; return the socket and the key of the job.

    When poprun has died any user can listen under its name, which is not secret. The
    caller would send that user the key and run the program of that user's choice, so
    only a listener of the caller's own user is accepted.

    Raises:
        OSError: Nothing listens there.
        PermissionError: Another user's process does.
    """
    address, key = address_and_key(control)
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    try:
        sock.connect(address)
        if (user := user_of(sock)) != os.geteuid():
            raise PermissionError(
                errno.EPERM,
                f"the control socket belongs to user {user}, not to {os.geteuid()}",
            )
    except OSError:
        sock.close()
        raise
    return sock, key


def address_and_key(control: bytes) -> tuple[bytes, bytes]:
    """Split "@NAME/KEY". NAME is in /proc/net/unix for all to read, KEY is not."""
    name, _, key = control.partition(b"/")
    return b"\0" + name[1:], key


def user_of(sock: _socket.socket) -> int:
    """Return the user at the other end, as the kernel knows it."""
    credentials = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], sys.byteorder)
