"""Write to a descriptor without ever waiting for whoever reads it.

poprun's own stdout may be a pipe to a pager that nobody scrolls. A write that waits
would make poprun deaf to Ctrl-C, so everything queues here and leaves when it can.
"""

import errno
import os
import socket
import stat
from collections import deque

# What a pipe takes without waiting once poll says that it takes anything.
SAFE_PIECE = 4096
# Above this much unwritten, whoever feeds a sink should pause.
ENOUGH = 1 << 20


class Sink:
    """One descriptor, and what is still to be written to it."""

    def __init__(self, descriptor: int) -> None:
        self._queue: deque[memoryview] = deque()
        self.queued = 0
        # Why nothing can be written any more: an errno, or 0.
        self.failure = 0
        self._descriptor, self._piece, self._socket = _open(descriptor)

    @property
    def full(self) -> bool:
        return self.queued > ENOUGH

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: bytes) -> None:
        """Write as much as can be written now, and keep the rest."""
        if self.failure or not data:
            return
        self._queue.append(memoryview(data))
        self.queued += len(data)
        if len(self._queue) == 1:
            self.flush()

    def flush(self) -> None:
        """Go on writing; call it when the descriptor is writable."""
        while self._queue:
            piece = self._queue[0]
            try:
                written = self._write(piece[: self._piece])
            except BlockingIOError:
                return
            except OSError as error:
                self.failure = error.errno or errno.EIO
                self._queue.clear()
                self.queued = 0
                return
            self.queued -= written
            if written < len(piece):
                self._queue[0] = piece[written:]
                if self._piece == SAFE_PIECE:
                    return  # only poll knows whether the next piece would wait
            else:
                self._queue.popleft()

    def drain(self) -> None:
        """Write everything, however long it takes."""
        while self._queue:
            _wait_writable(self._descriptor)
            self.flush()

    def _write(self, piece: memoryview) -> int:
        if self._socket:
            return self._socket.send(piece, socket.MSG_DONTWAIT)
        return os.write(self._descriptor, piece)


def _open(descriptor: int) -> tuple[int, int, socket.socket | None]:
    """Return what to write to, the largest piece at once, and a socket if it is one.

    O_NONBLOCK belongs to the open file, which the shell and others share: setting
    it on theirs would break them. A pipe or terminal opened anew is ours alone.
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISSOCK(mode):
        return descriptor, 1 << 16, socket.socket(fileno=os.dup(descriptor))
    if stat.S_ISREG(mode):
        return descriptor, 1 << 24, None
    try:
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
        return os.open(f"/proc/self/fd/{descriptor}", flags), 1 << 16, None
    except OSError:  # another user's terminal, after su
        return descriptor, SAFE_PIECE, None


def _wait_writable(descriptor: int) -> None:
    import select

    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll()
