"""poprun's ends of the instances' streams: their protocols, and descriptors as ends.

An instance on another host has its streams in frames of a connection: its RemoteHost
passes ends of another kind to Streams.open and to StdinFeeder.add.
"""

import os
import termios
import time
from typing import Protocol

# The streams that an instance writes; a shim sends them in this order.
STREAMS = ("stdout", "stderr")


class StreamEnd(Protocol):
    """One end of a stream. No method waits."""

    @property
    def descriptor(self) -> int | None:
        """The loop waits for it; None if it serves the end's connection already.

        Then the end is looked at in each turn of the loop.
        """

    def close(self) -> None:
        """Give the stream up."""


class OutputSource(StreamEnd, Protocol):
    """Brings the stdout or the stderr of one instance.

    If it is not read, the instance has to wait after a certain number of bytes: a pipe
    is full, or the sender of frames has no credit left.
    """

    @property
    def has_data(self) -> bool:
        """Whether there is something to read; asked where `descriptor` is None."""

    # When what `read` returned last was written, in seconds since 1970.
    written: float

    def read(self, most: int) -> bytes | None:
        """Return the next bytes; b"" at the end, None if there are none yet."""

    def resize(self, size: tuple[int, int]) -> None:
        """Give a terminal a size, in rows and columns."""


class InputSink(StreamEnd, Protocol):
    """Takes the standard input of one instance."""

    def write(self, data: bytes) -> int:
        """Return how much of the data was taken: nothing by a sink that is full.

        Raises:
            OSError: The instance has closed its standard input, or ended.
        """


class OutputReader(Protocol):
    """Reads the streams of instances."""

    def open(self, source: OutputSource, rank: int, stream: str) -> None:
        """Read a stream of an instance from now on."""


class InputFeeder(Protocol):
    """Gives instances something to read."""

    def descriptor_for(self, rank: int) -> int | None:
        """Return what to send to an instance of this host as its stdin, if anything."""


class _DescriptorEnd:
    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor

    def close(self) -> None:
        os.close(self.descriptor)


class DescriptorSource(_DescriptorEnd):
    """The read end of a pipe, or the master of a terminal."""

    # The loop learns by poll() that there is some.
    has_data = False
    written = 0.0

    def read(self, most: int) -> bytes | None:
        # It was written a moment ago: the reader waits for it.
        self.written = time.time()
        try:
            return os.read(self.descriptor, most)
        except BlockingIOError:
            return None
        except OSError:  # what a terminal says when its last writer is gone
            return b""

    def resize(self, size: tuple[int, int]) -> None:
        if os.isatty(self.descriptor):
            termios.tcsetwinsize(self.descriptor, size)


class DescriptorSink(_DescriptorEnd):
    """The write end of a pipe."""

    def write(self, data: bytes) -> int:
        try:
            return os.write(self.descriptor, data)
        except BlockingIOError:
            return 0
