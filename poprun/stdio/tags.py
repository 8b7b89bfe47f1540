"""Marks on the lines of a stream: tags, times, XML, as Open MPI 4.1 has them. Pure."""

import re
from collections.abc import Callable

from poprun.annotations import Protocol

# A return to the beginning of the line after which something is written over it.
_RETURN = rb"\r+(?=[^\r\n])"
# What Open MPI escapes: markup, and all that is no printable ASCII. The ampersand is
# first, because each escape has one.
_NAMED = {b"&": b"&amp;", b"<": b"&lt;", b">": b"&gt;"}
_CODES = (code for code in (*range(32), *range(128, 256)) if code != ord("\n"))
_ESCAPES = _NAMED | {bytes([code]): b"&#%03d;" % code for code in _CODES}
_PLAIN = bytes(code for code in range(32, 128) if code not in b"&<>")
# How much is marked at once: finding the places needs many times its memory.
PIECE = 1 << 18


class Mark(Protocol):
    """Marks the lines of one stream, piece by piece."""

    # Whether each marked line has to begin at the beginning of a line.
    own_line: bool

    def apply(self, data: bytes, *, continues: bool) -> bytes:
        """Return a piece with its marks.

        Args:
            continues: It goes on with the line that the last piece did not end.
        """
        ...


class Prefix:
    """A tag before each line, and nothing else.

    Args:
        tag: Is asked for each piece: a tag may tell the time.
        on_terminal: Repeat the tag where the line is written over from its beginning,
            or its end would stay at the end of a shorter line.
    """

    own_line = True

    def __init__(self, tag: Callable[[], bytes], *, on_terminal: bool = False) -> None:
        self._tag = tag
        self._on_terminal = on_terminal
        self._returned = False

    def apply(self, data: bytes, *, continues: bool) -> bytes:
        marked = []
        for start in range(0, len(data), PIECE):
            piece = data[start : start + PIECE]
            marked.append(self._apply(piece, continues=continues))
            continues = not piece.endswith(b"\n")
        return b"".join(marked)

    def _apply(self, data: bytes, *, continues: bool) -> bytes:
        tag = self._tag()
        last, begins = data[-1:], not continues
        if self._on_terminal:
            begins |= self._returned and data[:1] not in (b"\r", b"\n")
            self._returned = last == b"\r"
            if b"\r" in data:
                data = re.sub(_RETURN, lambda returned: returned[0] + tag, data)
        data = data[:-1].replace(b"\n", b"\n" + tag) + last
        return tag + data if begins else data


class Xml:
    """An element for each line: <stdout rank="0">the text&#010;</stdout>."""

    own_line = False

    def __init__(self, rank: int, stream: str) -> None:
        self._start = b'<%s rank="%d">' % (stream.encode(), rank)
        self._end = b"</%s>" % stream.encode()
        self._line_end = b"&#010;" + self._end + b"\n" + self._start

    def apply(self, data: bytes, *, continues: bool) -> bytes:
        present = set(data.translate(None, delete=_PLAIN))
        for character, escape in _ESCAPES.items():
            if character[0] in present:
                data = data.replace(character, escape)
        text = self._start + data.replace(b"\n", self._line_end)
        if data.endswith(b"\n"):
            return text[: -len(self._start)]
        return text + self._end
