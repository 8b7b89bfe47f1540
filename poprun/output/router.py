"""Where the instances' streams go: the terminal, files, and the report of a failure.

It owns the descriptors that poprun writes to. Console, in output/lines/console.py,
decides when it writes each line.
"""

import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from poprun.output.kept_output import KeptOutput
from poprun.output.lines.console import Console
from poprun.output.lines.pending_stream import PendingStream
from poprun.output.lines.screen import Screen
from poprun.output.lines.tags import Writer
from poprun.output.output_files import OutputFile, path_of
from poprun.output.routes import Routes
from poprun.output.stream_ends import STREAMS
from poprun.output.terminal import is_foreground, own_size
from poprun.output.waiter import WRITE, Interest
from poprun.output.writer import Sink

# How much of each stderr is kept for the report of a failure.
TAIL = 16384

# A traceback need not be repeated in a report that is no further below it.
LINES_IN_SIGHT = 100
# How often the status is looked at; it is drawn only when it has changed.
STATUS_INTERVAL_S = 0.25


class OutputRouter:
    """Passes the streams of one job on to the consoles, the files and the report."""

    def __init__(
        self,
        routes: Routes,
        stdout: int = 1,
        stderr: int = 2,
        screens: Mapping[str, Screen] | None = None,
        status: Callable[[float, float], str] | None = None,
    ) -> None:
        self._routes = routes
        self._screens = screens or {}
        # poprun's own text is written to stderr. A terminal gets both streams, and then
        # one queue keeps them in order.
        self.sinks = [Sink(stdout)]
        self._consoles = [self._open_console("stdout", stdout)]
        if not os.path.sameopenfile(stdout, stderr):
            self.sinks.append(Sink(stderr))
            self._consoles.append(self._open_console("stderr", stderr))
        out, self._err = self._consoles[0], self._consoles[-1]
        # By stream of the instances.
        self._by_stream = {"stdout": out, "stderr": out if routes.xml else self._err}
        if routes.xml:
            self.sinks[0].write(b"<mpirun>\n")
        # Returns the status for the last line of a terminal; the next time to ask it.
        self._status = status
        # When an instance last wrote something.
        self._last_output = -inf
        self._status_due = 0.0 if status else inf
        self._stderr = stderr
        self._streams: dict[tuple[int, str], PendingStream] = {}
        # The stream that brings the instances' stderr, and the last bytes of each.
        self._error_stream = "stdout" if routes.merged else "stderr"
        self._tails: dict[int, bytes] = {}
        self._files: dict[tuple[int, str], OutputFile] = {}
        # The output of instances that are shown only if they fail.
        self._kept: dict[int, KeptOutput] = {}

    def _open_console(self, name: str, descriptor: int) -> Console:
        """Return the console of the sink that was added last."""
        routes, is_tagged = self._routes, self._routes.is_tagged(name)
        # Each traceback has its tags if a program may read it, or if the user has asked
        # for mpirun's form.
        is_for_person = os.isatty(descriptor) and name in routes.template_streams
        return Console(
            self.sinks[-1].write,
            self._screens.get(name),
            joins_same=not (routes.xml or routes.is_quiet)
            and (not is_tagged or is_for_person),
            names_instances=not is_tagged,
            library=os.fsencode(routes.library),
        )

    def interests(self) -> Iterator[Interest]:
        """Yield the descriptors to wait for in order to write the queued bytes."""
        for sink in self.sinks:
            if sink.queued:
                yield Interest(sink.fileno(), WRITE, sink.flush)

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
        """Drop the bytes that have not been read."""
        for sink in self.sinks:
            sink.give_up()

    @property
    def closed(self) -> bool:
        """Whether the reader of stdout has ended."""
        return self.sinks[0].failure == errno.EPIPE

    @property
    def failure(self) -> tuple[str, int] | None:
        """The stream or file that could not be written, and the errno."""
        for name, sink in zip(STREAMS, self.sinks, strict=False):
            if sink.failure not in (0, errno.EPIPE) and not sink.lost:
                return name, sink.failure
        failures = ((f.path, f.failure) for f in self._files.values() if f.failure)
        return next(failures, None)

    def name_writers(self, writers: Sequence[Writer]) -> None:
        """Take in the instances when others are added: what their tags have."""
        self._routes = replace(self._routes, writers=writers)

    def open(self, rank: int, stream: str) -> None:
        """Route a stream from now on."""
        routes = self._routes
        on_terminal = stream in self._screens
        pending = PendingStream(
            routes.mark_on_console(rank, stream, on_terminal=on_terminal),
            rank,
            is_stderr=stream == "stderr",
            reads_terminal=rank == routes.terminal_reader,
        )
        self._streams[rank, stream] = pending
        if routes.is_kept(rank):
            self._kept.setdefault(rank, KeptOutput(len(routes.writers)))
        else:
            self._by_stream[stream].open(pending)
        if routes.directory is not None:
            path = path_of(routes.directory, rank, stream)
            mark = routes.mark_in_file(rank, stream)
            self._files[rank, stream] = OutputFile(path, mark)

    def feed(
        self, rank: int, stream: str, data: bytes, now: float, written: float = 0.0
    ) -> None:
        """Write what a stream has brought.

        Args:
            written: When it was written, in seconds since 1970.
        """
        self._last_output = now
        if stream == self._error_stream:
            self._tails[rank] = (self._tails.get(rank, b"") + data)[-TAIL:]
        if file := self._files.get((rank, stream)):
            file.write(data, written)
        if rank in self._kept:
            self._kept[rank].add(stream, data, written)
        elif self._routes.is_shown(rank) or self._routes.is_kept(rank):
            pending = self._streams[rank, stream]
            self._by_stream[stream].feed(pending, data, now, written)

    def show_prompt_of(self, rank: int | None) -> None:
        """Let other instances wait while the debugger of one shows a prompt.

        Args:
            rank: None when the prompt is over.
        """
        for console in self._consoles:
            console.show_prompt_of(rank, time.monotonic())

    def show_failed(self, rank: int) -> None:
        """Write the kept output of a failed instance, and all of it from now on."""
        kept = self._kept.pop(rank, None)
        if kept is None:
            return
        for stream in STREAMS:
            if (rank, stream) in self._streams:
                self._by_stream[stream].open(self._streams[rank, stream])
        pieces = list(kept.take())
        if kept.num_dropped and not self._routes.is_quiet:
            self.say(
                f"poprun: the first {kept.num_dropped} bytes that instance {rank} "
                "has written are not shown: only its last output is kept.\n"
            )
        for stream, data, written in pieces:
            pending = self._streams[rank, stream]
            self._by_stream[stream].feed(pending, data, time.monotonic(), written)
        for stream in kept.ended:
            self._close_on_console(rank, stream)

    def close(self, rank: int, stream: str) -> None:
        """End a stream."""
        if rank in self._kept:
            self._kept[rank].ended.append(stream)
        else:
            self._close_on_console(rank, stream)
        if file := self._files.get((rank, stream)):
            file.close()

    def _close_on_console(self, rank: int, stream: str) -> None:
        self._by_stream[stream].close(self._streams[rank, stream], time.monotonic())

    def tick(self, now: float) -> None:
        for sink, console in zip(self.sinks, self._consoles, strict=True):
            if sink.full:
                console.pause(now)
            else:
                console.tick(now)

        is_full = self.sinks[-1].full
        if now >= self._status_due and self._status is not None and not is_full:
            self._status_due = now + STATUS_INTERVAL_S
            may_draw = is_foreground(self._stderr)
            status = self._status(now, self._last_output)
            self._err.show(status.encode() if may_draw else b"")

    def deadline(self) -> float:
        # poll() reports when a full sink is read.
        pairs = zip(self.sinks, self._consoles, strict=True)
        dues = [console.deadline() for sink, console in pairs if not sink.full]
        return min([inf if self.sinks[-1].full else self._status_due, *dues])

    @property
    def shows_status(self) -> bool:
        return self._status is not None

    def hide_status(self, *, forever: bool = False) -> None:
        """Erase the status; it comes back unless that is for ever."""
        self._err.show(b"")
        if forever:
            self._status, self._status_due = None, inf

    def resize(self) -> None:
        """Take in that the terminal may have another size."""
        for screen in self._screens.values():
            screen.columns = own_size()[1]

    def say(self, text: str) -> None:
        """Write lines of poprun's own."""
        self._err.say(text.encode(errors="backslashreplace"))

    def end(self) -> None:
        """Take in that nothing more comes from the instances."""
        if self._routes.xml:
            self.sinks[0].write(b"</mpirun>\n")

    def tail(self, rank: int) -> bytes:
        """Return the end of an instance's stderr, shown or not."""
        return self._tails.get(rank, b"")

    def is_in_sight(self, rank: int) -> bool:
        """Return whether the end of an instance's stderr is near the end of poprun's.

        It is if it was written last; a traceback, which names its instance, may have
        other lines below it.
        """
        last, stream = self._err.last_stream, self._error_stream
        if last is not None and last is self._streams.get((rank, stream)):
            return True
        console = self._by_stream[stream]
        return console.lines_since_traceback(rank) <= LINES_IN_SIGHT
