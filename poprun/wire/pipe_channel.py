"""One end of the connection between poprun and an agent: whole messages, no waiting."""

import os

from poprun.wire import protocol

# How much is read at once.
PIECE = 1 << 18


class PipeChannel:
    """Two descriptors, or one socket, that are read and written as far as they go.

    Args:
        limit: The longest message that the peer may send.
    """

    def __init__(self, read: int, write: int, limit: int = protocol.MAX_LENGTH) -> None:
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        self.read_descriptor = read
        self.write_descriptor = write
        self._decoder = protocol.Decoder(limit)
        self._unsent = bytearray()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def receive(self) -> list[tuple[int, list[bytes]]] | None:
        """Return the messages that have come; None when the other end is gone."""
        data = self.read()
        if data is None:
            return []
        if not data:
            return None
        try:
            return self._decoder.feed(data)
        except ValueError:
            return None

    def read(self) -> bytes | None:
        """Return bytes that have come; None for nothing now, b"" at the end."""
        try:
            return os.read(self.read_descriptor, PIECE)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def feed(self, data: bytes) -> list[tuple[int, list[bytes]]]:
        """Return the messages in bytes that `read` has returned."""
        return self._decoder.feed(data)

    def send(self, message: bytes) -> None:
        """Send bytes now as far as they go; `flush` sends the rest."""
        self._unsent += message
        self.flush()

    def flush(self) -> None:
        """Send more of what could not be sent at once."""
        while self._unsent:
            try:
                sent = os.write(self.write_descriptor, self._unsent[:PIECE])
            except BlockingIOError:
                return
            except OSError:  # the peer is gone, as receive says: nothing has to wait
                sent = len(self._unsent)
            del self._unsent[:sent]

    def close(self) -> None:
        for descriptor in {self.read_descriptor, self.write_descriptor}:
            os.close(descriptor)
