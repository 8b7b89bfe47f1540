"""Write to a descriptor without ever waiting for its reader.

poprun's own stdout may be a pipe to a pager that is not scrolled. A write that waits
would keep poprun from handling Ctrl-C, so everything is queued here and written when
the descriptor takes it.
"""

import errno
import fcntl
import os
import select
import socket
import stat
import time
from math import ceil, inf
from socket import MSG_DONTWAIT

# A pipe takes so many bytes without waiting once poll reports that it is writable.
SAFE_PIECE = 4096
LARGE_PIECE = 1 << 16
# Above so much unwritten data, callers should write nothing more to a sink.
FULL_BYTES = 1 << 20


class Sink:
    """One descriptor, and the data that is not written to it yet.

    Small pieces are joined, so that a slow reader costs fewer writes.
    """

    def __init__(self, descriptor: int) -> None:
        self._unwritten = bytearray()
        self.written = 0
        # How many bytes were given up, because they were not read.
        self.lost = 0
        # Why nothing can be written any more: an errno, or 0.
        self.failure = 0
        self._socket: socket.socket | None = None
        # Whether a write may wait, so that poll has to be asked before each.
        self._may_wait = False
        self._caller_descriptor = descriptor
        self._descriptor = self._open(descriptor)

    @property
    def queued(self) -> int:
        return len(self._unwritten)

    @property
    def full(self) -> bool:
        return self.queued > FULL_BYTES

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: bytes) -> None:
        """Write as much as can be written now, and keep the rest."""
        if self.failure or not data:
            return
        self._unwritten += data
        if len(self._unwritten) == len(data):
            self.flush()

    def flush(self) -> None:
        """Go on writing; call it when the descriptor is writable."""
        while self._unwritten and (not self._may_wait or self._poll(0)):
            try:
                written = self._write()
            except BlockingIOError:
                return
            except OSError as error:
                self.failure = error.errno or errno.EIO
                self._unwritten.clear()
                return
            self.written += written
            del self._unwritten[:written]

    def drain(self, ends_by: float = inf) -> None:
        """Write everything, or as much as the reader takes until a time."""
        while self._unwritten and (left := ends_by - time.monotonic()) > 0:
            self._poll(None if left == inf else ceil(left * 1000))
            self.flush()

    def give_up(self) -> None:
        """Drop the unwritten data, and all that comes later."""
        if self._unwritten:
            self.lost, self.failure = self.queued, errno.ETIMEDOUT
            self._unwritten.clear()

    def close(self) -> None:
        """Close what this has opened; the caller's descriptor stays open."""
        if self._socket:
            self._socket.close()
        if self._descriptor != self._caller_descriptor:
            os.close(self._descriptor)

    def _poll(self, wait: int | None) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        return bool(poll.poll(wait))

    def _write(self) -> int:
        """Write the next piece; return how much of it was taken."""
        piece = self._unwritten[: SAFE_PIECE if self._may_wait else LARGE_PIECE]
        if self._socket:
            return self._socket.send(piece, MSG_DONTWAIT)
        return os.write(self._descriptor, piece)

    def _open(self, descriptor: int) -> int:
        """Return the descriptor to write to: if possible, one that never waits.

        O_NONBLOCK belongs to the open file, which the shell and others share: setting
        it on theirs would break them. A pipe or terminal opened anew is ours alone.
        """
        mode = os.fstat(descriptor).st_mode
        access = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        if stat.S_ISSOCK(mode):
            self._socket = socket.socket(fileno=os.dup(descriptor))
        elif not stat.S_ISREG(mode) and access != os.O_RDONLY:
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
            try:
                return os.open(f"/proc/self/fd/{descriptor}", flags)
            except OSError:  # another user's, after su
                self._may_wait = True
        return descriptor


def write_text(descriptor: int, text: str) -> int:
    """Write a text whole; return 0, or the errno if it cannot be written."""
    sink = Sink(descriptor)
    sink.write(text.encode(errors="surrogateescape"))
    sink.drain()
    sink.close()
    return sink.failure
