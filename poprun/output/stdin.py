"""The instances' standard input: nothing, poprun's stdin, or a file."""

import fcntl
import os
import stat
import struct
import termios
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from poprun.output import terminal
from poprun.output.stream_ends import DescriptorSink, InputSink
from poprun.output.waiter import READ, WRITE, Interest

NOTHING = "/dev/null"
PIECE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Stdin:
    """The standard input of each instance.

    An instance to which no input is sent opens `path`: /dev/null, or a file that every
    instance reads from its beginning.
    """

    path: str = NOTHING
    rank: int | None = None
    # How many instances get a copy each of poprun's stdin.
    copies: int = 0
    # Whether `rank` reads it for its debugger.
    debugs: bool = False

    @property
    def debugged(self) -> int | None:
        """The instance of --pdb."""
        return self.rank if self.debugs else None

    def is_sent_to(self, rank: int) -> bool:
        return self.copies > 0 or self.rank == rank

    def gives(self, rank: int) -> bool:
        """Return whether an instance gets anything to read."""
        return self.is_sent_to(rank) or self.path != NOTHING

    def advice_for(self, rank: int) -> str:
        """Return the value of --stdin that gives an instance input, if it has none."""
        if self.gives(rank):
            return ""
        copies = "all for each instance to get a copy"
        return f"{rank}, or --stdin {copies}" if self.rank is None else copies

    @property
    def is_own(self) -> bool:
        """Whether any instance reads poprun's own stdin."""
        return self.rank is not None or self.copies > 0


def describe_unread(descriptor: int = 0) -> str:
    """Return how much of poprun's stdin was not read, or "" if there is nothing.

    If poprun shares its stdin with its parent, the rest may be for the parent: the rest
    of a script, or the next line of a loop in a shell.
    """
    try:
        status = os.fstat(descriptor)
        parent = os.stat(f"/proc/{os.getppid()}/fd/0")
        size = _unread_bytes(descriptor, status)
    except OSError:
        return ""
    if not size or (parent.st_dev, parent.st_ino) == (status.st_dev, status.st_ino):
        return ""
    return f"{size} byte{'s' * (size > 1)}"


def _unread_bytes(descriptor: int, status: os.stat_result) -> int:
    if stat.S_ISREG(status.st_mode):
        return max(0, status.st_size - os.lseek(descriptor, 0, os.SEEK_CUR))
    if stat.S_ISFIFO(status.st_mode):
        reply = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(struct.calcsize("i")))
        return int(struct.unpack("i", reply)[0])
    return 0


class StdinFeeder:
    """Sends poprun's stdin to one instance or to all."""

    def __init__(self, stdin: Stdin) -> None:
        self._stdin = stdin
        # By sink: what it has not taken yet.
        self._pending: dict[InputSink, bytes] = {}
        # Nothing is read before all sinks are there, or some would miss it.
        self._missing = stdin.copies
        # The modes of a terminal that a debugger gets. A debugger that is killed does
        # not restore them.
        self._modes: list[Any] | None = None
        if stdin.debugs and os.isatty(0):
            self._modes = termios.tcgetattr(0)

    def descriptor_for(self, rank: int) -> int | None:
        """Return what to send to an instance of this host as its stdin, if anything.

        One instance gets poprun's own, so every byte and the end of file are exact
        and a terminal stays a terminal. Several get a pipe each.
        """
        if self._stdin.rank == rank:
            return os.dup(0)
        if not self._stdin.copies:
            return None
        read, write = os.pipe()
        self.add(DescriptorSink(write))
        return read

    def add(self, sink: InputSink) -> None:
        """Send a copy of poprun's stdin to what an instance reads."""
        self._missing = max(0, self._missing - 1)
        self._pending[sink] = b""

    def interests(self, read: Callable[[], object]) -> Iterator[Interest]:
        """Yield the descriptors to wait for in order to read more or to write it.

        The slowest instance decides when more is read.

        Args:
            read: Calls `read` when poprun may.
        """
        if self._pending and not self._missing and not any(self._pending.values()):
            yield Interest(0, READ, read)
        for sink, pending in self._pending.items():
            if pending and sink.descriptor is not None:
                yield Interest(sink.descriptor, WRITE, partial(self._write, sink))

    def tick(self) -> None:
        """Write to connections that others wait for."""
        for sink, pending in list(self._pending.items()):
            if pending and sink.descriptor is None:
                self._write(sink)

    def read(self) -> None:
        try:
            data = os.read(0, PIECE)
        except BlockingIOError:
            return
        except OSError:  # a terminal that is gone
            data = b""
        if not data:
            self.close()
        for sink in list(self._pending):
            self._pending[sink] = data
            self._write(sink)

    def _write(self, sink: InputSink) -> None:
        pending = self._pending[sink]
        try:
            self._pending[sink] = pending[sink.write(pending) :]
        except OSError:  # that instance has closed its stdin, or ended
            del self._pending[sink]
            sink.close()

    def close(self) -> None:
        for sink in self._pending:
            sink.close()
        self._pending.clear()
        if self._modes is not None and terminal.is_foreground(0):
            # The terminal may have hung up.
            with suppress(termios.error):
                termios.tcsetattr(0, termios.TCSADRAIN, self._modes)
            self._modes = None
