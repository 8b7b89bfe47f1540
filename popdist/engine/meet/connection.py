"""One end of a unix socket that carries messages and file descriptors.

No call blocks: poll() is for that.
"""

# Not socket, which takes longer to import than members take to meet.
import _socket
import errno
import json
import os
import struct

from popdist.engine.meet.messages import MeetingMessage

# Room for any packet: the table of some thousand members.
_LARGEST = 1 << 18
_FD = struct.Struct("=i")
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

    @property
    def is_of_this_user(self) -> bool:
        """Whether the kernel says that a process of this user has the other end."""
        return bool(self.uid == os.geteuid())

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, kind: str, value: object = None, fd: int | None = None) -> bool:
        """Send a message; return False if the peer has closed its end."""
        rights = [] if fd is None else [_FD.pack(fd)]
        ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, each) for each in rights]
        packet = json.dumps((kind, value)).encode()
        try:
            self._socket.sendmsg([packet], ancillary, _socket.MSG_NOSIGNAL)
        except ConnectionError:
            return False
        return True

    def receive(self, *, with_fd: bool = False) -> MeetingMessage:
        """Return one message, without a packet if the peer has closed its end.

        Args:
            with_fd: Take a file descriptor that comes with it. Otherwise the kernel
                closes it.
        """
        try:
            return self._receive(with_fd)
        except ConnectionResetError:
            # The other end was closed before it had read everything. Its own messages
            # can still be received after this error.
            return self._receive(with_fd)

    def _receive(self, with_fd: bool) -> MeetingMessage:
        space = _socket.CMSG_SPACE(_FD.size) if with_fd else 0
        flags = _socket.MSG_CMSG_CLOEXEC
        packet, ancillary, _, _ = self._socket.recvmsg(_LARGEST, space, flags)
        fds = [_FD.unpack_from(rights)[0] for _, _, rights in ancillary]
        return MeetingMessage.decode(packet, fds[0] if fds else None)

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
