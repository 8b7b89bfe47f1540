"""Write many streams to one console, line by line: (bytes, now) -> bytes. Pure.

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

from collections.abc import Hashable, Iterator
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
        screen: If it is a terminal.
        joins_same: Whether the same traceback of several instances is written once,
            with a line that names them.
        names_instances: Whether a line names the instance of a traceback, too: its
            lines have no tags.
        library: The directory whose frames are left out of tracebacks.
    """

    def __init__(
        self,
        screen: Screen | None = None,
        *,
        joins_same: bool = True,
        names_instances: bool = True,
        library: bytes = b"",
    ) -> None:
        self._screen = screen
        self._joins_same = joins_same
        self._names_instances = names_instances
        self._library = library
        self._streams: dict[Hashable, PendingStream] = {}
        # The stream whose unfinished line is on the console, if any.
        self._owner: Hashable | None = None
        self._mid_line = False
        self._out: list[tuple[Hashable, bytes]] = []
        # The instance whose debugger shows a prompt: others wait for its end.
        self._prompting: int | None = None
        self._stderr_keys: dict[int, Hashable] = {}
        self._printed = PrintedTracebacks()

    def open(self, key: Hashable, stream: PendingStream) -> None:
        """Add a stream."""
        self._streams[key] = stream
        if self._joins_same:
            stream.same_s = SAME_S
        if stream.is_stderr:
            self._stderr_keys[stream.instance] = key

    def feed(
        self, key: Hashable, data: bytes, now: float, written: float = 0.0
    ) -> None:
        """Take in what a stream has brought, and write what is due.

        Args:
            written: When it was written, in seconds since 1970.
        """
        stream = self._streams[key]
        self._put_traceback_before(stream)
        stream.take_in(data, now, written)
        is_due = self._may_write_lines(key) and now >= stream.held_back_until
        if stream.lines_size and is_due:
            self._put(key)
            stream.oldest_at = now
        if stream.unfinished_size and self._is_hidden_bar(key, data):
            stream.forget_overwritten()
        if stream.unfinished_size > MAX_LINE_BYTES or (
            stream.size > OWN_TURN_BYTES and self._waiting() > MAX_WAITING_BYTES
        ):
            self._put(key, partial=True)
        self._let_others(now)

    def close(self, key: Hashable, now: float = 0.0) -> None:
        """End a stream: its last line needs no newline to be whole."""
        stream = self._streams[key]
        stream.ended = True
        if all(other.ended for other in self._streams.values()):
            for other in self._streams.values():
                other.tracebacks = None  # no other will have the same
        if self._may_write_lines(key) and now >= stream.held_back_until:
            self._put(key)
        if self._owner == key:
            self._owner = None
        self._let_others(now)
        self._streams = {
            k: s for k, s in self._streams.items() if s.size or not s.ended
        }

    def tick(self, now: float) -> None:
        """Write what has waited for long enough."""
        for key, stream in self._streams.items():
            if stream.size and now >= self._due(key):
                self._put(key, partial=not stream.has_whole)
        self._let_others(now)

    def show_prompt_of(self, instance: int | None, now: float) -> None:
        """Let the other instances wait while a debugger shows a prompt.

        On a terminal its lines have no marks then, which it could not reckon with when
        it moves the cursor.

        Args:
            instance: The one with the prompt; None when it is over.
        """
        self._prompting = instance
        owner = self._streams.get(self._owner)
        if instance is not None and owner is not None and owner.instance != instance:
            self._break_line()
            self._mid_line, self._owner = False, None
        if instance is None:
            self._let_others(now)

    def pause(self, now: float) -> None:
        """Restart all waits: no output could be written for a while."""
        for stream in self._streams.values():
            stream.oldest_at = stream.newest_at = now

    def deadline(self) -> float:
        """Return when the next tick is due."""
        waiting = (key for key, stream in self._streams.items() if stream.size)
        return min(map(self._due, waiting), default=inf)

    def take(self) -> list[tuple[Hashable, bytes]]:
        """Return the texts to write now, each with the key of its stream, if any."""
        out, self._out = self._out, []
        return out

    def lines_since_traceback(self, instance: int) -> float:
        """Return how many lines stand below the last traceback of an instance."""
        return self._printed.lines_since(instance)

    def say(self, text: bytes) -> None:
        """Write lines of poprun's own."""
        screen = self._screen
        self._printed.count_lines(text)
        if screen is not None and self._owner is not None and screen.can_redraw:
            self._out.append((None, screen.write_above(text)))
            return
        if self._mid_line:
            self._break_line()
        self._write(None, text)
        self._mid_line, self._owner = False, None

    def show(self, status: bytes) -> None:
        """Show a status on a terminal, while no stream's line is unfinished."""
        if self._screen is not None and (drawn := self._screen.show(status)):
            self._out.append((None, drawn))

    def _due(self, key: Hashable) -> float:
        """Return when the text of a stream that waits is written at the latest."""
        stream = self._streams[key]
        if self._prompting == stream.instance:
            return stream.held_back_until  # the echo of what is typed
        if self._waits_for_prompt(stream):
            return inf
        if stream.has_whole and self._may_write_lines(key):
            return stream.held_back_until
        if self._is_free_for(key):
            return max(stream.partial_due, stream.held_back_until)
        if stream.has_whole:
            return max(stream.oldest_at + LINE_WAIT_S, stream.held_back_until)
        return inf

    def _waits_for_prompt(self, stream: PendingStream) -> bool:
        return self._prompting not in (None, stream.instance)

    def _waiting(self) -> int:
        return sum(stream.size for stream in self._streams.values())

    def _is_free_for(self, key: Hashable) -> bool:
        return self._owner in (None, key) or self._was_answered_for(key)

    def _was_answered_for(self, key: Hashable) -> bool:
        """Return whether what the user has typed may have ended the unfinished line.

        A prompt is on stderr, and what answers the user on stdout.
        """
        owner = self._streams.get(self._owner)
        is_prompt = owner is not None and owner.reads_terminal
        return is_prompt and self._streams[key].reads_terminal

    def _may_write_lines(self, key: Hashable) -> bool:
        if self._waits_for_prompt(self._streams[key]):
            return False
        if self._is_free_for(key) or self._streams[key].lines_size > OWN_TURN_BYTES:
            return True
        return self._screen is not None and self._screen.can_redraw

    def _is_hidden_bar(self, key: Hashable, data: bytes) -> bool:
        return self._screen is not None and b"\r" in data and not self._is_free_for(key)

    def _let_others(self, now: float) -> None:
        """Write the whole lines of the streams that waited for a line to end."""
        if self._owner is not None:
            return
        waiting = [(s.oldest_at, k, s) for k, s in self._streams.items() if s.has_whole]
        for _, key, stream in sorted(waiting, key=lambda entry: entry[0]):
            may_write = self._owner is None and not self._waits_for_prompt(stream)
            if may_write and now >= stream.held_back_until:
                self._put(key)

    def _put(self, key: Hashable, *, partial: bool = False) -> None:
        """Write the lines that a stream has waiting, or all of it."""
        stream = self._streams[key]
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
            self._put_traceback(key, stream, data, at, pieces[-1][0])
            return
        for written, piece in pieces:
            if piece:
                self._put_text(key, stream, piece, written)
        if at >= 0:
            self._printed.note(data[at:], {stream.instance})

    def _put_traceback_before(self, stream: PendingStream) -> None:
        """Write a whole traceback before its instance's next output."""
        key = self._stderr_keys.get(stream.instance)
        other = self._streams.get(key)
        if other is None or other is stream or other.tracebacks is None:
            return
        is_whole = other.lines_size and other.tracebacks.has_exception
        if is_whole and self._may_write_lines(key):
            self._put(key)

    def _put_traceback(
        self,
        key: Hashable,
        stream: PendingStream,
        data: bytes,
        at: int,
        written: float,
    ) -> None:
        """Write a traceback, and a line that names its instances if need be."""
        text = comparable(data[at:])
        is_cut_off = stream.ended and not is_whole(text) and self._begins_another(text)
        if at:
            self._put_text(key, stream, data[:at], written)
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
        whole = without_frames_of(self._library, data[at:])
        self._put_text(key, stream, whole, written)
        printed.note(text, instances)

    def _waiting_tracebacks(
        self,
    ) -> Iterator[tuple[Hashable, PendingStream, bytes, int]]:
        """Yield each stream's waiting text with a traceback, and where that begins."""
        for key, stream in self._streams.items():
            if stream.is_stderr and stream.lines_size:
                data = b"".join(
                    stream.lines + (stream.unfinished if stream.ended else [])
                )
                at = first_line(data)
                if at >= 0:
                    yield key, stream, data, at

    def _begins_another(self, text: bytes) -> bool:
        """Return whether a longer traceback of another instance begins with a text."""
        others = [comparable(data[at:]) for *_, data, at in self._waiting_tracebacks()]
        if self._printed.text_above is not None:
            others.append(self._printed.text_above)
        return any(other != text and other.startswith(text) for other in others)

    def _take_same(self, text: bytes) -> list[int]:
        """Take the same traceback out of the other streams; return their instances."""
        instances = []
        for key, stream, data, at in self._waiting_tracebacks():
            if comparable(data[at:]) == text:
                written, _ = stream.take_out(partial=False)[-1]
                if at:
                    self._put_text(key, stream, data[:at], written)
                instances.append(stream.instance)
        return instances

    def _put_text(
        self, key: Hashable, stream: PendingStream, data: bytes, written: float
    ) -> None:
        continues, screen = self._mid_line and self._owner == key, self._screen
        self._printed.count_lines(data)
        text = data
        has_mark = screen is None or self._prompting != stream.instance
        if stream.mark is not None and has_mark:
            text = stream.mark.apply(data, continues=continues, time=written)
        if self._mid_line and not continues:
            if screen is not None and self._owner is not None and screen.can_redraw:
                self._out.append((key, screen.write_above(text)))
                return
            if self._was_answered_for(key):
                pass  # the user's Enter has ended it
            elif screen is not None or (stream.mark and stream.mark.own_line):
                self._break_line()
        self._write(key, text)
        if screen is not None:
            self._mid_line = screen.mid_line
        else:
            self._mid_line = not data.endswith(b"\n")
        self._owner = key if self._mid_line and not stream.ended else None

    def _break_line(self) -> None:
        """End a line for the stream that has left it unfinished."""
        self._write(None, b"\n")
        if self._owner in self._streams:
            self._streams[self._owner].broken = True

    def _write(self, key: Hashable, text: bytes) -> None:
        if self._screen is not None:
            text = self._screen.write(text)
        self._out.append((key, text))
