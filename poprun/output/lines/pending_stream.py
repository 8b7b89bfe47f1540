"""The bytes of one stream that the console has not written yet. Pure."""

from poprun.output.lines.tags import Mark
from poprun.output.lines.tracebacks import Tracebacks

# An unfinished line is written when it has been one for so long.
PARTIAL_WAIT_S = 0.05
# One that is longer than any prompt or bar is the beginning of a long line, and is
# written only if nothing is added to it for so long.
LONG_PARTIAL = 4096
LONG_PARTIAL_WAIT_S = 0.5
# A program that buffers its output writes whole blocks of so many bytes, and not lines:
# it has the rest of an unfinished line already. It may have to wait for a processor.
BLOCK = 4096
BLOCK_WAIT_S = 5.0
# A stream with more bytes of whole lines than this does not wait for others.
OWN_TURN_BYTES = 1 << 16


class PendingStream:
    """One stream, and the bytes of it that the console has not written yet.

    Args:
        instance: The one that writes to it.
        is_stderr: Keep its tracebacks together.
        reads_terminal: Whether that instance reads the terminal of the console.
    """

    # How long to wait for the same traceback of other instances.
    same_s = 0.0

    def __init__(
        self,
        mark: Mark | None = None,
        instance: int = 0,
        *,
        is_stderr: bool = False,
        reads_terminal: bool = False,
    ) -> None:
        self.mark = mark
        self.instance = instance
        self.is_stderr = is_stderr
        self.reads_terminal = reads_terminal
        self.tracebacks = Tracebacks() if is_stderr else None
        # Whole lines, with the time when each was written in seconds since 1970, and
        # the pieces of an unfinished line, with the time of the last piece.
        self._lines: list[tuple[float, bytes]] = []
        self._unfinished: list[bytes] = []
        self._unfinished_written = 0.0
        self.lines_size = self.unfinished_size = 0
        # The length of the unfinished line when `forget_overwritten` last read it.
        self.size_when_checked = 0
        self.oldest_at = 0.0  # when the oldest of them came
        self.newest_at = 0.0  # and the newest
        self._is_block = False  # whether that was whole blocks
        self.ended = False
        # A newline was written after its unfinished line, for other text.
        self.broken = False

    @property
    def size(self) -> int:
        return self.lines_size + self.unfinished_size

    @property
    def has_whole(self) -> bool:
        """Whether whole lines wait, or the last line of the stream."""
        return bool(self.lines_size or (self.ended and self.unfinished_size))

    @property
    def held_back_until(self) -> float:
        """Until when more lines of a traceback may come, or the same of others."""
        if self.tracebacks is None or self.size > OWN_TURN_BYTES:
            return 0.0
        if self.ended and not self.same_s:
            return 0.0
        return self.tracebacks.until + self.same_s if self.tracebacks.until else 0.0

    @property
    def partial_due(self) -> float:
        if self._is_block:
            return self.newest_at + BLOCK_WAIT_S
        if self.unfinished_size > LONG_PARTIAL:
            return self.newest_at + LONG_PARTIAL_WAIT_S
        return self.oldest_at + PARTIAL_WAIT_S

    def take_in(self, data: bytes, now: float, written: float = 0.0) -> None:
        if not self.size:
            self.oldest_at = now
        self.newest_at = now
        self._is_block = bool(data) and len(data) % BLOCK == 0
        cut = data.rfind(b"\n") + 1
        if cut:
            lines = data if cut == len(data) else data[:cut]
            if self._unfinished:
                lines = b"".join([*self._unfinished, lines])
                self._unfinished, self.unfinished_size = [], 0
            self._lines.append((written, lines))
            self.lines_size += len(lines)
            if self.tracebacks is not None:
                self.tracebacks.see(lines, now)
        if cut < len(data):
            self._unfinished.append(data[cut:])
            self.unfinished_size += len(data) - cut
            self._unfinished_written = written

    def whole_text(self) -> bytes:
        """Return the whole lines that wait, with the last line of an ended stream."""
        lines = [lines for _, lines in self._lines]
        return b"".join(lines + (self._unfinished if self.ended else []))

    def take_out(self, *, partial: bool) -> list[tuple[float, bytes]]:
        """Return the waiting pieces with their times; one piece without such a tag."""
        pieces, self._lines, self.lines_size = self._lines, [], 0
        if (partial or self.ended) and self._unfinished:
            pieces.append((self._unfinished_written, b"".join(self._unfinished)))
            self._unfinished, self.unfinished_size = [], 0
        is_timed = self.mark is not None and self.mark.is_timed
        if len(pieces) > 1 and not is_timed:
            return [(pieces[-1][0], b"".join([data for _, data in pieces]))]
        return pieces

    def forget_overwritten(self) -> None:
        """Keep only the last state of a bar that is not on the console."""
        # A long line is joined only when it has doubled, or each piece would copy it.
        if OWN_TURN_BYTES < self.unfinished_size < 2 * self.size_when_checked:
            return
        line = b"".join(self._unfinished)
        at = line.rstrip(b"\r").rfind(b"\r")
        if at > 0 and b"\x1b" not in line[:at]:
            line = line[at:]
        self._unfinished, self.unfinished_size = [line], len(line)
        self.size_when_checked = len(line)
