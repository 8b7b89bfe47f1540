"""Detect Python tracebacks in a stream, compare and describe them. Pure.

A traceback comes in many small writes. Its lines are held back until it is whole, so
that the tracebacks of several instances do not mix; but not for long, because only
Python knows where it ends.
"""

import re
from math import inf

from poprun.words import describe_instances

MARKER = b"Traceback (most recent call last):"
# On a terminal Python 3.13 and later colour file names, numbers and source.
COLOUR = rb"(?:\x1b\[[0-9;]*m)*"
# The first line of Python's report on source that it cannot compile.
SYNTAX = rb'^  File %s".*"%s, line %s[0-9]+%s$' % ((COLOUR,) * 4)

# From the line of the exception on: more lines of its message, or the exception that
# was raised while it was handled.
AFTER_EXCEPTION_S = 0.05
# From one line of a traceback to the next, on a busy machine or disk: Python reads the
# source of each.
BETWEEN_LINES_S = 1.0
# From the first line to the last, whatever comes.
LONGEST_S = 3.0
# For the same traceback of other instances, when one is whole.
SAME_S = 0.25
# Parts that may differ in the same traceback of two instances: torch's prefix, and
# addresses as Python, C++ and C libraries write them. Other such numbers may be the
# error.
DIFFERENT = rb"(?<=\bat )0x[0-9a-fA-F]+|(?<=[(\[])0x[0-9a-fA-F]+|\[rank[0-9]+\]"


class Tracebacks:
    """Detects the tracebacks in the lines of one stream."""

    def __init__(self) -> None:
        # Until when the stream is held back.
        self.until = 0.0
        # Whether the line of the exception has come.
        self.has_exception = False
        self._limit = 0.0
        # The text before each of its lines, as torch's "[rank1]: ".
        self._prefix = b""

    def see(self, lines: bytes, now: float) -> None:
        """Take in whole lines."""
        inside = now < self.until
        if not inside and first_line(lines) < 0:
            return
        for line in lines.split(b"\n")[:-1]:
            at = line.find(MARKER)
            if at < 0 and not inside and re.match(SYNTAX, line):
                at = 0
            if at >= 0:
                self._prefix = line[:at]
                self._limit = self._limit if inside else now + LONGEST_S
                inside = True
            if inside:
                wait = BETWEEN_LINES_S
                self.has_exception = at < 0 and is_exception(line, self._prefix)
                if self.has_exception:
                    wait = AFTER_EXCEPTION_S
                self.until = min(now + wait, self._limit)


def is_exception(line: bytes, prefix: bytes) -> bool:
    """Return whether a line below a traceback's first is not one of its frames."""
    rest = line.removeprefix(prefix)
    return bool(rest[:1].strip())


def is_whole(traceback: bytes) -> bool:
    """Return whether a traceback ends with a line below its frames."""
    at = traceback.find(MARKER)
    last = traceback[traceback.rfind(b"\n", 0, -1) + 1 :]
    is_below = MARKER not in last and is_exception(last, traceback[: max(at, 0)])
    return is_below and last.endswith(b"\n")


def first_line(data: bytes) -> int:
    """Return the position of the first line of the first traceback, or -1."""
    at = data.find(MARKER)
    if b"  File " in data[: max(at, 0) or None]:
        syntax = re.search(SYNTAX, data, re.MULTILINE)
        if syntax is not None and (at < 0 or syntax.start() < at):
            return syntax.start()
    return at if at < 0 else data.rfind(b"\n", 0, at) + 1


def comparable(traceback: bytes) -> bytes:
    """Return what the same traceback of another instance has in common with one."""
    return re.sub(DIFFERENT, b"", traceback)


def without_frames_of(library: bytes, traceback: bytes) -> bytes:
    """Leave out the frames of a library where it has refused a call of the program.

    It has if the last frame is at a raise statement. Otherwise the frames show where it
    failed.

    Args:
        library: The path of its directory; nothing is left out if that is empty.
    """
    at = traceback.find(MARKER)
    if not library or library not in traceback or at < 0:
        return traceback
    prefix = re.escape(traceback[traceback.rfind(b"\n", 0, at) + 1 : at])
    file = rb'^%s  File %s"' % (prefix, COLOUR)
    refusal = rb"\n%s    %sraise\b" % (prefix, COLOUR)

    def replace(frames: re.Match[bytes]) -> bytes:
        last = frames[0][frames[0].rfind(b"  File ") :]
        is_last = re.match(rb"%s\S" % prefix, traceback[frames.end() :])
        called = traceback[: frames.start()]
        is_called = re.search(file + b"(?!<frozen )", called, re.MULTILINE)
        is_refusal = is_last and is_called and re.search(refusal, last)
        return b"" if is_refusal else frames[0]

    own = file + re.escape(library) + b"/"
    pattern = rb"(?:%s.*\n(?:^%s    .*\n)*)+" % (own, prefix)
    return re.sub(pattern, replace, traceback, flags=re.MULTILINE)


class PrintedTracebacks:
    """The tracebacks on the console, and the texts that name their instances."""

    def __init__(self) -> None:
        # The text and the instances of the last one; None and empty before the first.
        self._text: bytes | None = None
        self.instances: set[int] = set()
        # Whether nothing has been written below it.
        self._is_last = False
        # Whether a text has named the instances of a traceback.
        self._has_words = False
        # By instance, which lines of all were the last ones of its last traceback.
        self._lines_written = 0
        self._ends: dict[int, int] = {}

    @property
    def text_above(self) -> bytes | None:
        """The traceback right above the next text, if any."""
        return self._text if self._is_last else None

    def note(self, text: bytes, instances: set[int]) -> None:
        """Take note of a traceback that has just been written."""
        self._text, self.instances, self._is_last = text, instances, True
        for instance in instances:
            self._ends[instance] = self._lines_written

    def count_lines(self, text: bytes) -> None:
        """Take note of any text before it is written."""
        self._lines_written += text.count(b"\n")
        self._is_last = False

    def lines_since(self, instance: int) -> float:
        """Return how many lines stand below the last traceback of an instance."""
        return self._lines_written - self._ends.get(instance, -inf)

    def attribution(self, instances: set[int]) -> str:
        """Return the text above a traceback of these instances, if it needs one."""
        if (self._text is None and len(instances) == 1) or instances == self.instances:
            return ""
        is_first = self._text is None or self._has_words
        self._has_words = True
        if is_first:
            return f"This traceback is {_possessive(instances)}"
        return (
            f"The traceback before this one is {_possessive(self.instances)}, and "
            f"this one is {_possessive(instances)}"
        )

    def describe_common(self, instances: set[int]) -> str:
        """Return the text below a traceback that all these instances have."""
        self._has_words = True
        return f"{describe_instances(instances).capitalize()} have this traceback."


def _possessive(instances: set[int]) -> str:
    text = describe_instances(instances)
    return f"{text}'s" if len(instances) == 1 else f"that of {text}"
