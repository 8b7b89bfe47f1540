"""One end of a unix socket that carries packets, credentials and file descriptors.

No call blocks: poll() is for that.
"""

# Not socket, which takes longer to import than members take to meet.
import _socket
import errno
import os
import struct
from collections.abc import Sequence

# Room for any packet: the table of some thousand members.
_LARGEST = 1 << 18
_MOST_FDS = 8
_CREDENTIALS = struct.Struct("=iII")


class Connection:
    """A connection to another process of this host."""

    def __init__(self, socket: _socket.socket) -> None:
        self._socket = socket
        level, option = _socket.SOL_SOCKET, _socket.SO_PEERCRED
        credentials = socket.getsockopt(level, option, _CREDENTIALS.size)
        self.pid, self.uid, _ = _CREDENTIALS.unpack(credentials)
        # The member's rank, once its hello has arrived.
        self.rank: int | None = None

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: bytes, fds: Sequence[int] = ()) -> None:
        """Send one packet; raise ConnectionError if the peer has closed its end."""
        rights = struct.pack(f"={len(fds)}i", *fds)
        ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if fds else []
        self._socket.sendmsg([message], ancillary, _socket.MSG_NOSIGNAL)

    def receive(self) -> tuple[bytes, list[int]]:
        """Return one packet and its file descriptors; b"" at the end of the peer."""
        try:
            return self._receive()
        except ConnectionResetError:
            # The other end was closed before it had read everything. Its own messages
            # can still be received after this error.
            return self._receive()

    def _receive(self) -> tuple[bytes, list[int]]:
        space = _socket.CMSG_SPACE(4 * _MOST_FDS)
        flags = _socket.MSG_CMSG_CLOEXEC
        message, ancillary, _, _ = self._socket.recvmsg(_LARGEST, space, flags)
        fds: list[int] = []
        for level, kind, rights in ancillary:
            if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
                fds += struct.unpack(f"={len(rights) // 4}i", rights)
        return message, fds

    def close(self) -> None:
        self._socket.close()


def listen(address: bytes, backlog: int) -> _socket.socket:
    """Return a listening socket; raise OSError (EADDRINUSE) if there is one."""
    socket = _new_socket()
    try:
        socket.bind(address)
        socket.listen(backlog)
    except BaseException:
        socket.close()
        raise
    return socket


def accept(listener: _socket.socket) -> Connection:
    """Return the next connection; raise BlockingIOError if there is none."""
    # The type checker does not know this one.
    descriptor, _ = listener._accept()  # type: ignore[attr-defined]
    os.set_blocking(descriptor, False)
    return Connection(_socket.socket(fileno=descriptor))


def connect(address: bytes) -> Connection | None:
    """Return a connection, or None while nothing accepts connections there."""
    socket = _new_socket()
    try:
        socket.connect(address)
        return Connection(socket)
    except OSError as error:
        socket.close()
        # No socket listens, too many connections wait to be accepted, or the address
        # belongs to a socket of another type, which is none of ours.
        if error.errno in (errno.ECONNREFUSED, errno.EAGAIN, errno.EPROTOTYPE):
            return None
        raise
    except BaseException:
        socket.close()
        raise


def _new_socket() -> _socket.socket:
    kind = _socket.SOCK_SEQPACKET | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC
    return _socket.socket(_socket.AF_UNIX, kind)
