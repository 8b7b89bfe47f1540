"""Where the instances' streams go: the terminal, files, and the memory of a report.

It owns the descriptors that poprun writes to. Console, in stdio/lines.py, decides what
goes out when.
"""

import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping
from math import inf

from poprun.errors import LaunchError
from poprun.record import Record
from poprun.stdio.lines import Console
from poprun.stdio.screen import Screen
from poprun.stdio.tags import Mark, Prefix, Xml
from poprun.stdio.terminal import is_foreground, own_size
from poprun.stdio.waiter import WRITE, Interest, calling
from poprun.stdio.writer import Sink

# How much of each stderr is kept for the report of a failure.
TAIL = 16384

STREAMS = ("stdout", "stderr")
# A traceback need not be repeated in a report that is no further below it.
LINES_IN_SIGHT = 100
# How often the status is looked at; it is drawn only when it has changed.
STATUS_INTERVAL_S = 0.25
Key = tuple[int, str]


class Routes(Record):
    """What a job's output is to look like."""

    tag: bool = False
    # The time before each line, before its tag if it has one.
    timestamp: bool = False
    # All of it on stdout, as elements, instead of tags and times.
    xml: bool = False
    # What instances write to stderr comes by their stdout.
    merged: bool = False
    only_instance: int | None = None
    # DIR/1/rank.N/stdout and stderr, as mpirun's --output-filename.
    directory: str | None = None
    # And nothing on the console.
    only_files: bool = False
    # The instance that reads the terminal which the output is written to.
    terminal_reader: int | None = None
    # The directory whose frames are left out of tracebacks on the console.
    library: str = ""

    def mark_of(
        self, rank: int, stream: str, *, on_terminal: bool = False
    ) -> Mark | None:
        """Make what marks the lines of one stream in one place."""
        if self.xml:
            return Xml(rank, stream)
        if not (self.tag or self.timestamp):
            return None
        tag = self.tag_of(rank, stream)
        if not self.timestamp:
            return Prefix(lambda: tag, on_terminal=on_terminal)
        return Prefix(lambda: time.ctime().encode() + tag, on_terminal=on_terminal)

    def width_of_mark(self, instances: int) -> int:
        """Return how many columns the widest mark takes on a terminal."""
        if self.xml or not (self.tag or self.timestamp):
            return 0
        time_width = len(time.ctime()) if self.timestamp else 0
        return time_width + len(self.tag_of(instances - 1, "stdout"))

    def tag_of(self, rank: int, stream: str) -> bytes:
        whose = b"[1,%d]" % rank if self.tag else b""
        return b"%s<%s>:" % (whose, stream.encode())

    def is_shown(self, rank: int) -> bool:
        return not self.only_files and self.only_instance in (None, rank)


class OutputRouter:
    """All streams of one job on their way."""

    def __init__(
        self,
        routes: Routes,
        stdout: int = 1,
        stderr: int = 2,
        screens: Mapping[str, Screen] | None = None,
        status: Callable[[float], str] | None = None,
    ) -> None:
        self._routes = routes
        screens = screens or {}
        self._out = Sink(stdout)
        # A terminal gets both, and then one queue keeps them in order.
        self._err = self._out if _same_file(stdout, stderr) else Sink(stderr)
        self._screens = screens
        is_marked = routes.tag or routes.xml
        self._consoles = {
            name: Console(
                screens.get(name),
                names_instances=not is_marked,
                library=os.fsencode(routes.library),
            )
            for name in STREAMS
        }
        self._sinks = {"stdout": self._out, "stderr": self._err}
        # Where poprun's own words go.
        self._own = self._consoles["stderr"]
        if self._err is self._out:
            self._own = self._consoles["stderr"] = self._consoles["stdout"]
        if routes.xml:
            self._consoles["stderr"] = self._consoles["stdout"]
            self._sinks["stderr"] = self._out
            self._out.write(b"<mpirun>\n")
        # What to show on stderr while nothing else is on its line, and when next.
        self._status = status
        self._status_due = 0.0 if status else inf
        self._stderr = stderr
        self._tails: dict[int, bytes] = {}
        # By stream: what to write to, and what marks the lines there.
        self._files: dict[Key, tuple[int, Mark | None]] = {}
        # The streams whose last line in their file has not ended.
        self._continues: set[Key] = set()
        self._last: Key | None = None
        self._file_failure: tuple[str, int] | None = None

    @property
    def sinks(self) -> list[Sink]:
        return [self._out] if self._err is self._out else [self._out, self._err]

    def interests(self) -> Iterator[Interest]:
        """Yield what to wait for in order to write what is unwritten."""
        for sink in self.sinks:
            if sink.queued:
                yield Interest(sink.fileno(), WRITE, calling(sink.flush))

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
        """How many bytes were given up because they were not read, by stream."""
        named = zip(STREAMS, self.sinks, strict=False)
        return {name: sink.lost for name, sink in named if sink.lost}

    def give_up(self) -> None:
        """Drop what has not been read."""
        for sink in self.sinks:
            sink.give_up()

    @property
    def closed(self) -> bool:
        """Whether the reader of stdout has ended."""
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
        routes, is_stderr = self._routes, stream == "stderr"
        self._consoles[stream].open(
            (rank, stream),
            routes.mark_of(rank, stream, on_terminal=stream in self._screens),
            instance=rank,
            is_stderr=is_stderr,
            reads_terminal=rank == routes.terminal_reader,
        )
        if routes.directory is None:
            return
        try:
            descriptor = open_file(routes.directory, rank, stream)
            self._files[rank, stream] = descriptor, routes.mark_of(rank, stream)
        except OSError as error:
            self._lose_file((rank, stream), error)

    def feed(self, rank: int, stream: str, data: bytes, now: float) -> None:
        """A stream goes on."""
        if stream == self._error_stream:
            self._tails[rank] = (self._tails.get(rank, b"") + data)[-TAIL:]
        if (rank, stream) in self._files:
            self._write_file((rank, stream), data)
        if self._routes.is_shown(rank):
            self._consoles[stream].feed((rank, stream), data, now)
            self._write(self._consoles[stream])

    def close(self, rank: int, stream: str) -> None:
        """A stream ends."""
        self._consoles[stream].close((rank, stream), time.monotonic())
        self._write(self._consoles[stream])
        file = self._files.pop((rank, stream), None)
        self._continues.discard((rank, stream))
        if file is not None:
            os.close(file[0])

    def tick(self, now: float) -> None:
        for console in self._different_consoles():
            if self._is_full(console):
                console.pause(now)
            else:
                console.tick(now)
                self._write(console)

        if now >= self._status_due and self._status is not None and not self._err.full:
            self._status_due = now + STATUS_INTERVAL_S
            is_ours = is_foreground(self._stderr)
            self._show(self._status(now) if is_ours else "")

    def deadline(self) -> float:
        # poll() reports when a full sink is read.
        waiting = [c for c in self._different_consoles() if not self._is_full(c)]
        status_due = inf if self._err.full else self._status_due
        return min([status_due, *(console.deadline() for console in waiting)])

    def hide_status(self, *, forever: bool = False) -> None:
        """Erase the status; it comes back unless that is for ever."""
        self._show("")
        if forever:
            self._status, self._status_due = None, inf

    def _show(self, status: str) -> None:
        self._own.show(status.encode())
        self._write(self._own)

    def resize(self) -> None:
        """Take in that the terminal may have another size."""
        for screen in self._screens.values():
            screen.columns = own_size()[1]

    def say(self, text: str) -> None:
        """Write poprun's own words, on a line of their own."""
        self._own.say(text.encode(errors="backslashreplace"))
        self._write(self._own)

    def end(self) -> None:
        """Take in that nothing more comes from the instances."""
        if self._routes.xml:
            self._out.write(b"</mpirun>\n")

    def tail(self, rank: int) -> bytes:
        """Return the end of an instance's stderr, shown or not."""
        return self._tails.get(rank, b"")

    def is_in_sight(self, rank: int) -> bool:
        """Return whether an instance's last words stand at the end of where errors go.

        Of a traceback words say whose it is, so others may stand below it.
        """
        console = self._consoles[self._error_stream]
        is_near = console.lines_since_traceback(rank) <= LINES_IN_SIGHT
        return is_near or self._last == (rank, self._error_stream)

    @property
    def _error_stream(self) -> str:
        return "stdout" if self._routes.merged else "stderr"

    def _different_consoles(self) -> list[Console]:
        return list({id(c): c for c in (*self._consoles.values(), self._own)}.values())

    def _is_full(self, console: Console) -> bool:
        sinks = [
            self._sinks[name] for name in STREAMS if self._consoles[name] is console
        ]
        return any(sink.full for sink in sinks)

    def _write(self, console: Console) -> None:
        for key, data in console.take():
            # Words that are no stream's are on stderr's console, or end a line.
            if key is not None:
                sink = self._sinks[key[1]]  # type: ignore[index]
            else:
                sink = self._err if console is self._own else self._out
            sink.write(data)
            if sink is self._err and key is not None:
                self._last = key  # type: ignore[assignment]

    def _write_file(self, key: Key, data: bytes) -> None:
        descriptor, mark = self._files[key]
        if mark is not None:
            continues = key in self._continues
            if data.endswith(b"\n"):
                self._continues.discard(key)
            else:
                self._continues.add(key)
            data = mark.apply(data, continues=continues)
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(descriptor, view) :]
        except OSError as error:
            os.close(descriptor)
            del self._files[key]
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


def make_files(directory: str, instances: int) -> None:
    """Make the files of --output-filename, before anything is started.

    Raises:
        LaunchError: One of them cannot be written.
    """
    for rank in range(instances):
        for stream in STREAMS:
            try:
                os.close(open_file(directory, rank, stream))
            except OSError as error:
                refusal = LaunchError(
                    f"--output-filename {directory}: {error.filename} cannot be "
                    f"written: {error.strerror}. Name a directory that can."
                )
                raise refusal from None


def _same_file(one: int, other: int) -> bool:
    a, b = os.fstat(one), os.fstat(other)
    return (a.st_dev, a.st_ino, a.st_rdev) == (b.st_dev, b.st_ino, b.st_rdev)
