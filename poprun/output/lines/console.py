"""Write many streams to one console, line by line: (bytes, now) -> bytes.

A line is written when it is whole, so that lines of two instances never mix. An
unfinished line, such as a prompt or a progress bar, is written when it has waited for a
moment. From then on the console's line is its stream's, and other streams wait until
that line ends, but not for long.

No byte is changed, dropped or added, but for marks on lines; for a progress bar on a
terminal, which is redrawn below the lines of others; and for tracebacks. A traceback is
written in one piece, and the same one of several instances once, with a line that names
the instances and without the frames of a library. A part of one, from a process that
was ended, is left out.
"""

from collections.abc import Callable, Iterator
from math import inf

from poprun.output.lines.pending_stream import OWN_TURN_BYTES, PendingStream
from poprun.output.lines.screen import Screen
from poprun.output.lines.tracebacks import (
    SAME_S,
    PrintedTracebacks,
    comparable,
    first_line,
    is_whole,
    without_frames_of,
)

# How long whole lines wait for the end of another stream's unfinished line.
LINE_WAIT_S = 0.2
# A longer line is written in pieces; so is any line if more than that waits in all.
MAX_LINE_BYTES = 1 << 24
MAX_WAITING_BYTES = 1 << 26


class Console:
    """One console line, and the streams that write to it.

    Args:
        write: Writes to the console.
        screen: If it is a terminal.
        joins_same: Whether the same traceback of several instances is written once,
            with a line that names them.
        names_instances: Whether a line names the instance of a traceback, too: its
            lines have no tags.
        library: Tracebacks leave out the frames in this directory.
    """

    def __init__(
        self,
        write: Callable[[bytes], object],
        screen: Screen | None = None,
        *,
        joins_same: bool = True,
        names_instances: bool = True,
        library: bytes = b"",
    ) -> None:
        self._output = write
        self._screen = screen
        self._joins_same = joins_same
        self._names_instances = names_instances
        self._library = library
        self._streams: list[PendingStream] = []
        # The stream with an unfinished line on the console, if any.
        self._owner: PendingStream | None = None
        self._mid_line = False
        # The stream that was written last.
        self.last_stream: PendingStream | None = None
        # The instance with a debugger at a prompt: others wait for its end.
        self._prompting: int | None = None
        # The stderr of each instance.
        self._stderrs: dict[int, PendingStream] = {}
        self._printed = PrintedTracebacks()

    def open(self, stream: PendingStream) -> None:
        """Add a stream."""
        self._streams.append(stream)
        if self._joins_same:
            stream.same_s = SAME_S
        if stream.is_stderr:
            self._stderrs[stream.instance] = stream

    def feed(
        self, stream: PendingStream, data: bytes, now: float, written: float = 0.0
    ) -> None:
        """Take in the next bytes of a stream, and write the lines that are due.

        Args:
            written: When it was written, in seconds since 1970.
        """
        self._put_traceback_before(stream)
        stream.take_in(data, now, written)
        is_due = self._may_write_lines(stream) and now >= stream.held_back_until
        if stream.lines_size and is_due:
            self._put(stream)
            stream.oldest_at = now
        if stream.unfinished_size and self._is_hidden_bar(stream, data):
            stream.forget_overwritten()
        if stream.unfinished_size > MAX_LINE_BYTES or (
            stream.size > OWN_TURN_BYTES
            and sum(s.size for s in self._streams) > MAX_WAITING_BYTES
        ):
            self._put(stream, partial=True)
        self._let_others(now)

    def close(self, stream: PendingStream, now: float = 0.0) -> None:
        """End a stream: its last line needs no newline to be whole."""
        stream.ended = True
        if all(other.ended for other in self._streams):
            for other in self._streams:
                other.tracebacks = None  # no other will have the same
        if self._may_write_lines(stream) and now >= stream.held_back_until:
            self._put(stream)
        if self._owner is stream:
            self._owner = None
        self._let_others(now)
        self._streams = [s for s in self._streams if s.size or not s.ended]

    def tick(self, now: float) -> None:
        """Write the texts that are due."""
        for stream in self._streams:
            if stream.size and now >= self._due(stream):
                self._put(stream, partial=not stream.has_whole)
        self._let_others(now)

    def show_prompt_of(self, instance: int | None, now: float) -> None:
        """Let the other instances wait while a debugger shows a prompt.

        On a terminal its lines have no marks then, which it could not reckon with when
        it moves the cursor.

        Args:
            instance: The one with the prompt; None when it is over.
        """
        self._prompting = instance
        if instance is None:
            self._let_others(now)
        elif self._owner is not None and self._owner.instance != instance:
            self._break_line()

    def pause(self, now: float) -> None:
        """Restart all waits: no output could be written for a while."""
        for stream in self._streams:
            stream.oldest_at = stream.newest_at = now

    def deadline(self) -> float:
        """Return when the next tick is due."""
        waiting = (stream for stream in self._streams if stream.size)
        return min(map(self._due, waiting), default=inf)

    def lines_since_traceback(self, instance: int) -> float:
        """Return how many lines stand below the last traceback of an instance."""
        return self._printed.lines_since(instance)

    def say(self, text: bytes) -> None:
        """Write lines of poprun's own."""
        self._printed.count_lines(text)
        if not self._write_above(text):
            if self._mid_line:
                self._break_line()
            self._write(text)

    def show(self, status: bytes) -> None:
        """Show a status on a terminal, while no stream's line is unfinished."""
        if self._screen is not None and (drawn := self._screen.show(status)):
            self._output(drawn)

    def _due(self, stream: PendingStream) -> float:
        """Return when the text of a stream that waits is written at the latest."""
        if self._prompting == stream.instance:
            return stream.held_back_until  # the echo of typed characters
        if self._waits_for_prompt(stream):
            return inf
        if stream.has_whole and self._may_write_lines(stream):
            return stream.held_back_until
        if self._is_free_for(stream):
            return max(stream.partial_due, stream.held_back_until)
        if stream.has_whole:
            return max(stream.oldest_at + LINE_WAIT_S, stream.held_back_until)
        return inf

    def _waits_for_prompt(self, stream: PendingStream) -> bool:
        return self._prompting not in (None, stream.instance)

    def _is_free_for(self, stream: PendingStream) -> bool:
        return self._owner in (None, stream) or self._was_answered_for(stream)

    def _was_answered_for(self, stream: PendingStream) -> bool:
        """Return whether what the user has typed may have ended the unfinished line.

        A prompt is on stderr, and what answers the user on stdout.
        """
        is_prompt = self._owner is not None and self._owner.reads_terminal
        return is_prompt and stream.reads_terminal

    def _may_write_lines(self, stream: PendingStream) -> bool:
        if self._waits_for_prompt(stream):
            return False
        if self._is_free_for(stream) or stream.lines_size > OWN_TURN_BYTES:
            return True
        return self._screen is not None and self._screen.can_redraw

    def _is_hidden_bar(self, stream: PendingStream, data: bytes) -> bool:
        is_bar = self._screen is not None and b"\r" in data
        return is_bar and not self._is_free_for(stream)

    def _let_others(self, now: float) -> None:
        """Write the whole lines of the streams that waited for a line to end."""
        if self._owner is not None:
            return
        waiting = [stream for stream in self._streams if stream.has_whole]
        for stream in sorted(waiting, key=lambda waits: waits.oldest_at):
            may_write = self._owner is None and not self._waits_for_prompt(stream)
            if may_write and now >= stream.held_back_until:
                self._put(stream)

    def _put(self, stream: PendingStream, *, partial: bool = False) -> None:
        """Write the lines that a stream has waiting, or all of it."""
        pieces = stream.take_out(partial=partial)
        if stream.broken and pieces:
            stream.broken = False
            written, first = pieces[0]
            pieces[0] = written, first.removeprefix(b"\n")
        data = b"".join([piece for _, piece in pieces])
        if not data:
            return
        at = first_line(data) if stream.is_stderr else -1
        if at >= 0 and self._joins_same:
            self._put_traceback(stream, data, at, pieces[-1][0])
            return
        for written, piece in pieces:
            if piece:
                self._put_text(stream, piece, written)
        if at >= 0:
            self._printed.note(data[at:], {stream.instance})

    def _put_traceback_before(self, stream: PendingStream) -> None:
        """Write a whole traceback before its instance's next output."""
        other = self._stderrs.get(stream.instance)
        if other is None or other is stream or other.tracebacks is None:
            return
        is_whole = other.lines_size and other.tracebacks.has_exception
        if is_whole and self._may_write_lines(other):
            self._put(other)

    def _put_traceback(
        self, stream: PendingStream, data: bytes, at: int, written: float
    ) -> None:
        """Write a traceback, and a line that names its instances if need be."""
        text = comparable(data[at:])
        is_cut_off = stream.ended and not is_whole(text) and self._begins_another(text)
        if at:
            self._put_text(stream, data[:at], written)
        if is_cut_off:
            return
        instances = {stream.instance, *self._take_same(text)}
        printed = self._printed
        if printed.text_above == text and not instances & printed.instances:
            every = printed.instances | instances
            self.say(f"poprun: {printed.describe_common(every)}\n".encode())
            printed.note(text, every)
            return
        is_unsaid = self._names_instances or len(instances) > 1
        if is_unsaid and (words := printed.attribution(instances)):
            self.say(f"poprun: {words}:\n".encode())
        self._put_text(stream, without_frames_of(self._library, data[at:]), written)
        printed.note(text, instances)

    def _waiting_tracebacks(self) -> Iterator[tuple[PendingStream, bytes, int]]:
        """Yield each stream with a waiting traceback, its text, and the first line."""
        for stream in self._streams:
            if stream.is_stderr and stream.lines_size:
                data = stream.whole_text()
                if (at := first_line(data)) >= 0:
                    yield stream, data, at

    def _begins_another(self, text: bytes) -> bool:
        """Return whether a longer traceback of another instance begins with a text."""
        others = [comparable(data[at:]) for _, data, at in self._waiting_tracebacks()]
        if self._printed.text_above is not None:
            others.append(self._printed.text_above)
        return any(other != text and other.startswith(text) for other in others)

    def _take_same(self, text: bytes) -> list[int]:
        """Take the same traceback out of the other streams; return their instances."""
        instances = []
        for stream, data, at in self._waiting_tracebacks():
            if comparable(data[at:]) == text:
                written, _ = stream.take_out(partial=False)[-1]
                if at:
                    self._put_text(stream, data[:at], written)
                instances.append(stream.instance)
        return instances

    def _put_text(self, stream: PendingStream, data: bytes, written: float) -> None:
        continues, screen = self._mid_line and self._owner is stream, self._screen
        self._printed.count_lines(data)
        self.last_stream = stream
        text = data
        has_mark = screen is None or self._prompting != stream.instance
        if stream.mark is not None and has_mark:
            text = stream.mark.apply(data, continues=continues, time=written)
        if self._mid_line and not continues:
            if self._write_above(text):
                return
            if self._was_answered_for(stream):
                pass  # the user's Enter has ended it
            elif screen is not None or (stream.mark and stream.mark.own_line):
                self._break_line()
        self._write(text)
        self._mid_line = not data.endswith(b"\n")
        if screen is not None:
            self._mid_line = screen.mid_line
        self._owner = stream if self._mid_line and not stream.ended else None

    def _write_above(self, text: bytes) -> bool:
        """Write lines above a progress bar; return False if there is none."""
        screen = self._screen
        if screen is None or self._owner is None or not screen.can_redraw:
            return False
        self._output(screen.write_above(text))
        return True

    def _break_line(self) -> None:
        """End a line for the stream that has left it unfinished."""
        self._write(b"\n")
        if self._owner is not None:
            self._owner.broken = True
        self._mid_line, self._owner = False, None

    def _write(self, text: bytes) -> None:
        self._output(text if self._screen is None else self._screen.write(text))
