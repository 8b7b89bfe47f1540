"""One unix socket to a shim or a guard: whole messages and descriptors, no waiting."""

import os
import socket
import struct

from poprun import wire

# More descriptors than any message brings.
MOST_DESCRIPTORS = 4


class Channel:
    """A socket that is read and written only as far as it goes at once."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
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
        room = socket.CMSG_LEN(MOST_DESCRIPTORS * 4)
        try:
            data, ancillary, _, _ = self.sock.recvmsg(1 << 16, room)
        except BlockingIOError:
            return []
        except OSError:
            return None
        for _, _, packed in ancillary:
            count = len(packed) // 4
            fresh = struct.unpack(f"{count}i", packed[: count * 4])
            for descriptor in fresh:
                os.set_inheritable(descriptor, False)
            self.descriptors += fresh
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
        packed = struct.pack(f"{len(descriptors)}i", *descriptors)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)] if descriptors else []
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


def peer(sock: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end, as the kernel knows them."""
    size = struct.calcsize("3i")
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, _ = struct.unpack("3i", packed)
    return pid, uid
