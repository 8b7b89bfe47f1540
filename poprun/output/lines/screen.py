"""The line at the cursor of a terminal: an unfinished one, or poprun's status. Pure.

Both are redrawn when whole lines have to appear above them. Write the returned bytes at
once, so that nothing flickers.
"""

import re

ERASE = b"\r\x1b[K"
# More of an unfinished line need not be known: it does not fit on a line anyway.
LONGEST = 4096

# Colours, erasing to the end of the line, the cursor's visibility, titles and links.
_HARMLESS = (
    rb"\x1b(?:\[[0-9;:]*[mK]|\[\?25[hl]|\][^\x07\x1b]*(?:\x07|\x1b\\))|[\x00\x07]"
)
# Sequences that move the cursor within a line, or erase the rest of it.
_MOTIONS = rb"(\r|\x1b\[0?K)"
# Other sequences that move the cursor, without titles and links. A sequence that is cut
# off at the end may be anything.
_MOVES = rb"\x1b(?!\[[0-9;:]*[mK]|\[\?25[hl]|\]|\\|\[[0-9;:?]*$|$)"
# Characters that are two columns wide.
_WIDE = (
    "[\u1100-\u115f\u2e80-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60"
    "\U0001f300-\U0001faff\U00020000-\U0003fffd]"
)


class Screen:
    """The state of one terminal's cursor."""

    def __init__(self, columns: int = 80) -> None:
        self.columns = columns
        # A program has moved the cursor by itself: its place is unknown.
        self.is_strange = False
        # The unfinished line, since the last return to its beginning.
        self._line = b""
        # The visible characters of that line, and the cursor's place.
        self._row = ""
        self._column = 0
        self._status = b""
        self._drawn = False

    @property
    def mid_line(self) -> bool:
        return bool(self._line)

    @property
    def can_redraw(self) -> bool:
        """Whether the unfinished line is a bar, which others may be written above."""
        if self.is_strange or b"\r" not in self._line:
            return False
        visible = re.sub(_HARMLESS, b"", self._visible())
        return b"\t" not in visible and _width(visible) <= self.columns

    def write(self, text: bytes) -> bytes:
        """Return the bytes that make a text appear at the cursor."""
        before = self._erase()
        self._note(text)
        return before + text + self._draw()

    def write_above(self, text: bytes) -> bytes:
        """Return the bytes that make whole lines appear above the unfinished line."""
        self.is_strange = self.is_strange or bool(re.search(_MOVES, text))
        end = b"" if text.endswith(b"\n") else b"\n"
        return ERASE + text + end + self._visible()

    def show(self, status: bytes) -> bytes:
        """Return the bytes that show a status while the line is free."""
        if status == self._status and (self._drawn or self.mid_line):
            return b""
        before = self._erase()
        self._status = status
        return before + self._draw()

    def _erase(self) -> bytes:
        drawn, self._drawn = self._drawn, False
        return ERASE if drawn else b""

    def _draw(self) -> bytes:
        if not self._status or self._line or self.is_strange:
            return b""
        self._drawn = True
        return self._status[: max(0, self.columns - 1)]

    def _visible(self) -> bytes:
        ended = b"\r" if self._line.endswith(b"\r") else b""
        return self._line.rstrip(b"\r").rpartition(b"\r")[2] + ended

    def _note(self, text: bytes) -> None:
        if b"\x1b" in text and re.search(_MOVES, text):
            self.is_strange = True
        cut = text.rfind(b"\n") + 1
        if cut:
            self._line, self._row, self._column = b"", "", 0
        self._overwrite(text[cut:])
        line = self._line + text[cut:]
        if b"\r" in line:
            line = line[max(0, line.rstrip(b"\r").rfind(b"\r")) :]
        if not self._column and not self._row.strip():
            line = b""  # it shows nothing, or has been wiped
        self._line = line[-LONGEST:]

    def _overwrite(self, text: bytes) -> None:
        if len(text) > LONGEST:
            # Its beginning shows something, but the characters are not known.
            self._row, self._column = "?" * LONGEST, LONGEST
            text = text[-LONGEST:]
        for part in re.split(_MOTIONS, text):
            if part == b"\r":
                self._column = 0
            elif re.fullmatch(_MOTIONS, part):
                self._row = self._row[: self._column]
            else:
                plain = re.sub(_HARMLESS, b"", part).decode(errors="replace")
                end = self._column + len(plain)
                if end <= LONGEST:
                    self._row = self._row[: self._column] + plain + self._row[end:]
                    self._column = end


def _width(text: bytes) -> int:
    characters = text.strip(b"\r").decode(errors="replace")
    return len(characters) + len(re.findall(_WIDE, characters))
