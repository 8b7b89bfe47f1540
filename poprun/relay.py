"""Where the instances' streams go: the terminal, files, and the memory of a report.

It owns the descriptors that poprun writes to. The rules of what goes out when are in
output; this is the plumbing.
"""

import errno
import os
from typing import NamedTuple

from poprun.output import Console
from poprun.sink import Sink

# How much of each stderr is kept for the report of a failure.
TAIL = 16384

STREAMS = ("stdout", "stderr")
Key = tuple[int, str]


class Routes(NamedTuple):
    """What a job's output is to look like."""

    tag: bool = False
    only_instance: int | None = None
    # DIR/1/rank.N/stdout and stderr, as mpirun's --output-filename.
    directory: str | None = None

    def tag_of(self, rank: int, stream: str) -> bytes:
        return b"[1,%d]<%s>:" % (rank, stream.encode()) if self.tag else b""

    def is_shown(self, rank: int) -> bool:
        return self.only_instance in (None, rank)


class Relay:
    """All streams of one job on their way."""

    def __init__(self, routes: Routes, stdout: int = 1, stderr: int = 2) -> None:
        self._routes = routes
        self._out = Sink(stdout)
        # A terminal gets both, and then one queue keeps them in order.
        self._err = self._out if _same_file(stdout, stderr) else Sink(stderr)
        self._consoles = {"stdout": Console(), "stderr": Console()}
        if self._err is self._out:
            self._consoles["stderr"] = self._consoles["stdout"]
        self._tails: dict[int, bytes] = {}
        self._files: dict[Key, int] = {}
        self._last: Key | None = None
        self._file_failure: tuple[str, int] | None = None

    @property
    def sinks(self) -> list[Sink]:
        return [self._out] if self._err is self._out else [self._out, self._err]

    @property
    def full(self) -> bool:
        return any(sink.full for sink in self.sinks)

    @property
    def queued(self) -> int:
        return sum(sink.queued for sink in self.sinks)

    @property
    def written(self) -> int:
        return sum(sink.written for sink in self.sinks)

    @property
    def lost(self) -> dict[str, int]:
        """How many bytes were given up because nobody read them, by stream."""
        named = zip(STREAMS, self.sinks, strict=False)
        return {name: sink.lost for name, sink in named if sink.lost}

    def give_up(self) -> None:
        """Drop what nobody reads."""
        for sink in self.sinks:
            sink.give_up()

    @property
    def closed(self) -> bool:
        """Whoever read stdout has gone."""
        return self._out.failure == errno.EPIPE

    @property
    def failure(self) -> tuple[str, int] | None:
        """What could not be written, and the errno."""
        for name, sink in (("stdout", self._out), ("stderr", self._err)):
            if sink.failure not in (0, errno.EPIPE) and not sink.lost:
                return name, sink.failure
        return self._file_failure

    def open(self, rank: int, stream: str) -> None:
        """A stream begins."""
        self._consoles[stream].open((rank, stream), self._routes.tag_of(rank, stream))
        if self._routes.directory is None:
            return
        try:
            self._files[rank, stream] = open_file(self._routes.directory, rank, stream)
        except OSError as error:
            self._lose_file((rank, stream), error)

    def feed(self, rank: int, stream: str, data: bytes, now: float) -> None:
        """A stream goes on."""
        if stream == "stderr":
            self._tails[rank] = (self._tails.get(rank, b"") + data)[-TAIL:]
        if (rank, stream) in self._files:
            self._write_file((rank, stream), data)
        if self._routes.is_shown(rank):
            self._consoles[stream].feed((rank, stream), data, now)
            self._write(stream)

    def close(self, rank: int, stream: str) -> None:
        """A stream ends."""
        self._consoles[stream].close((rank, stream))
        self._write(stream)
        descriptor = self._files.pop((rank, stream), None)
        if descriptor is not None:
            os.close(descriptor)

    def tick(self, now: float) -> None:
        for stream, console in self._consoles.items():
            console.tick(now)
            self._write(stream)

    def deadline(self) -> float:
        return min(console.deadline() for console in self._consoles.values())

    def say(self, text: str) -> None:
        """Write poprun's own words, on a line of their own."""
        before = self._consoles["stderr"].interrupt()
        self._err.write(before + text.encode(errors="backslashreplace"))

    def tail(self, rank: int) -> bytes:
        """Return the end of an instance's stderr, shown or not."""
        return self._tails.get(rank, b"")

    def was_last(self, rank: int) -> bool:
        """Return whether an instance's stderr is the last thing where errors go."""
        return self._last == (rank, "stderr")

    def _write(self, stream: str) -> None:
        for key, data in self._consoles[stream].take():
            sink = self._out if key[1] == "stdout" else self._err  # type: ignore[index]
            sink.write(data)
            if sink is self._err:
                self._last = key  # type: ignore[assignment]

    def _write_file(self, key: Key, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._files[key], view) :]
        except OSError as error:
            os.close(self._files.pop(key))
            self._lose_file(key, error)

    def _lose_file(self, key: Key, error: OSError) -> None:
        name = path_of(self._routes.directory or "", *key)
        self._file_failure = self._file_failure or (name, error.errno or errno.EIO)


def path_of(directory: str, rank: int, stream: str) -> str:
    """Return where mpirun of Open MPI 4 writes a stream."""
    return os.path.join(directory, "1", f"rank.{rank}", stream)


def open_file(directory: str, rank: int, stream: str) -> int:
    """Make the file of one stream."""
    path = path_of(directory, rank, stream)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)


def _same_file(one: int, other: int) -> bool:
    a, b = os.fstat(one), os.fstat(other)
    return (a.st_dev, a.st_ino, a.st_rdev) == (b.st_dev, b.st_ino, b.st_rdev)
