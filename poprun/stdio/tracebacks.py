"""Whether a stream is in the middle of a Python traceback, by its lines. Pure.

A traceback comes in many small writes. Its lines are held back until it is whole, so
that the tracebacks of several instances do not mix; but not for long, because only
Python knows where it ends.
"""

MARKER = b"Traceback (most recent call last):"

# From the line of the exception on: more lines of its message, or the exception that
# was raised while it was handled.
AFTER_EXCEPTION_S = 0.05
# From one line of a traceback to the next, on a busy machine.
BETWEEN_LINES_S = 0.3
# From the first line to the last, whatever comes.
LONGEST_S = 1.0


class Tracebacks:
    """The lines of one stream, as far as they are a traceback's."""

    def __init__(self) -> None:
        # Until when the stream is held back.
        self.until = 0.0
        self._limit = 0.0
        # What stands before each line of this one, as torch's "[rank1]: ".
        self._prefix = b""

    def see(self, lines: bytes, now: float) -> None:
        """Take in whole lines."""
        inside = now < self.until
        if not inside and MARKER not in lines:
            return
        for line in lines.split(b"\n")[:-1]:
            at = line.find(MARKER)
            if at >= 0:
                self._prefix = line[:at]
                self._limit = self._limit if inside else now + LONGEST_S
                inside = True
            if inside:
                wait = BETWEEN_LINES_S
                if at < 0 and is_exception(line, self._prefix):
                    wait = AFTER_EXCEPTION_S
                self.until = min(now + wait, self._limit)


def is_exception(line: bytes, prefix: bytes) -> bool:
    """Return whether a line below a traceback's first is not one of its frames."""
    rest = line.removeprefix(prefix)
    return bool(rest[:1].strip())


def first_line(data: bytes) -> int:
    """Return where the line begins that begins the first traceback, or -1."""
    at = data.find(MARKER)
    return at if at < 0 else data.rfind(b"\n", 0, at) + 1
