"""Marks on the lines of a stream: tags, times, XML. Pure.

The XML and PopRun's form of tags come from Open MPI 4.1.
"""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from string import Formatter
from time import ctime

from poprun.color import INSTANCES

# Invisible bytes: control characters and escape sequences. The last sequence may be cut
# off.
_SEQUENCE = rb"\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~]"
_CUT_OFF = rb"(?:\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?|[ -/]*))?"
_NOTHING = rb"(?:\x1b(?:%s)|[\x00\x07\x08])*+%s" % (_SEQUENCE, _CUT_OFF)
_NOTHING_OR_RETURNS = rb"(?:\x1b(?:%s)|[\x00\x07\x08\r])*+%s" % (_SEQUENCE, _CUT_OFF)
# A return to the beginning of the line, if something is written over it. A sequence
# that erases the line would erase a tag before it, too.
_RETURN = rb"\r++(?:\x1b\[[0-2]?K)*+(?!%s(?:[\r\n]|\Z))" % _NOTHING
# Open MPI escapes markup, and all bytes but printable ASCII. The ampersand is first,
# because each escape has one.
_NAMED = {b"&": b"&amp;", b"<": b"&lt;", b">": b"&gt;"}
_CODES = (code for code in (*range(32), *range(128, 256)) if code != ord("\n"))
_ESCAPES = _NAMED | {bytes([code]): b"&#%03d;" % code for code in _CODES}
_PLAIN = bytes(code for code in range(32, 128) if code not in b"&<>")
# How much is marked at once: finding the places needs many times its memory.
PIECE = 1 << 18

Tag = bytes | Callable[[float], bytes]


# The fields in a template of --tag-format.
FIELDS = ("instance", "host", "local_instance", "stream", "time")
# PopRun's form, which is mpirun's, on one host and on several: scripts search for it.
POPRUN = "[1,{instance}]<{stream}>:"
# The format after the colon in a field, but for `time`.
_SPEC = r"[<>^]?0?[0-9]{0,2}"
# A directive of strftime, and the letters of those that glibc has. It copies others
# to the output as they are.
_DIRECTIVE = r"%[-_0^#]*[0-9]*[EO:]?(.?)"
_LETTERS = "aAbBcCdDeFfgGhHIjklmMnpPrRsStTuUVwWxXyYzZ%"
_UNPRINTABLE = r"[\x00-\x08\x0a-\x1f\x7f-\x9f]"


def check_template(template: str) -> None:
    """Check a template of --tag-format.

    Raises:
        ValueError: It is none; the text says why.
    """
    names = []
    for _, name, spec, conversion in Formatter().parse(template):
        if name is None:
            continue
        names.append(name)
        if name not in FIELDS:
            raise ValueError(f"{{{name}}} is no field")
        if conversion or "{" in (spec or ""):
            raise ValueError(f"{{{name}}} has more after it than a width")
        if name == "time":
            _check_directives(spec or "")
            spec = datetime.now(UTC).strftime(spec or "")
            _check_printable(spec)
        elif not re.fullmatch(_SPEC, spec or ""):
            raise ValueError(f"{{{name}}} has {spec!r} after it, which is no width")
    if not names:
        raise ValueError("it has no field")
    _check_printable(template)


def _check_directives(spec: str) -> None:
    for directive in re.finditer(_DIRECTIVE, spec, re.DOTALL):
        if not directive[1] or directive[1] not in _LETTERS:
            raise ValueError(f"{{time}} has {directive[0]!r}, which strftime lacks")


def _check_printable(text: str) -> None:
    if re.search(_UNPRINTABLE, text):
        raise ValueError("it has characters that control a terminal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """One stream of one instance, as its tags name it."""

    instance: int
    stream: str = ""
    host: str = ""
    local_instance: int = 0

    def tag(
        self, template: str, *, colored: bool = False, timestamp: bool = False
    ) -> Tag:
        """Return the tag that a template makes; where it tells the time, a function.

        Args:
            timestamp: Begin with the time in mpirun's form.
        """
        before = after = ""
        if colored:
            before = f"\x1b[{INSTANCES[self.instance % len(INSTANCES)]}m"
            after = "\x1b[39m"
        fields = asdict(self)

        def render(seconds: float) -> bytes:
            time = ctime(seconds) if timestamp else ""
            text = template.format(**fields, time=_Time(seconds))
            return f"{time}{before}{text}{after}".encode(errors="surrogateescape")

        return render if timestamp or "{time" in template else render(0.0)


class _Time:
    """A time in UTC, which formats as datetime does, and else as ISO 8601 has it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __format__(self, spec: str) -> str:
        moment = datetime.fromtimestamp(self._seconds, UTC)
        if spec:
            return moment.strftime(spec)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Prefix:
    """A tag before each line, and nothing else.

    Args:
        tag: The tag, or a function from the time to the tag.
        on_terminal: Repeat the tag where the line is written over from its beginning,
            or its end would stay at the end of a shorter line. An unfinished line that
            shows nothing gets none: it may be the last, with a shell's prompt after it.
    """

    # Whether each marked line has to begin at the beginning of a line.
    own_line = True

    def __init__(self, tag: Tag, *, on_terminal: bool = False) -> None:
        self._tag = tag
        # Whether a mark tells when its line was written.
        self.is_timed = not isinstance(tag, bytes)
        self._on_terminal = on_terminal
        # The next visible bytes of the line need a tag before them.
        self._is_due = False

    def apply(self, data: bytes, *, continues: bool, time: float = 0.0) -> bytes:
        """Return a piece of a stream with its marks.

        Args:
            continues: It goes on with the line that the last piece did not end.
            time: When it was written, in seconds since 1970.
        """
        tag = self._tag if isinstance(self._tag, bytes) else self._tag(time)
        marked = []
        for start in range(0, len(data), PIECE):
            piece = data[start : start + PIECE]
            marked.append(self._apply(piece, tag, continues=continues))
            continues = not piece.endswith(b"\n")
        return b"".join(marked)

    def _apply(self, data: bytes, tag: bytes, *, continues: bool) -> bytes:
        at, begins = data.rfind(b"\n") + 1, not continues
        is_shown = at < len(data)
        if self._on_terminal:
            begins |= self._is_due and data[:1] not in (b"\r", b"\n")
            is_shown = self._note(data[at:], begins=begins or at > 0)
            if b"\r" in data:
                data = re.sub(_RETURN, lambda returned: returned[0] + tag, data)
                at = data.rfind(b"\n") + 1
        lines, rest = data[:at], data[at:]
        if lines:
            lines = lines[:-1].replace(b"\n", b"\n" + tag) + b"\n"
            rest = tag + rest if is_shown else rest
            is_shown = True
        return tag + lines + rest if begins and is_shown else lines + rest

    def _note(self, rest: bytes, *, begins: bool) -> bool:
        """Take in an unfinished line on a terminal; return whether it shows anything.

        Args:
            begins: It begins in this piece, or has to have a tag.
        """
        if re.fullmatch(_NOTHING_OR_RETURNS, rest):
            self._is_due = bool(rest) and (begins or self._is_due or b"\r" in rest)
            return False
        _, returned, last = rest.rpartition(b"\r")
        self._is_due = bool(returned and re.fullmatch(_NOTHING, last))
        return True


class Xml:
    """An element for each line: <stdout rank="0">the text&#010;</stdout>."""

    own_line = False
    is_timed = False

    def __init__(self, rank: int, stream: str) -> None:
        self._start = b'<%s rank="%d">' % (stream.encode(), rank)
        self._end = b"</%s>" % stream.encode()
        self._line_end = b"&#010;" + self._end + b"\n" + self._start

    def apply(self, data: bytes, *, continues: bool, time: float = 0.0) -> bytes:
        present = set(data.translate(None, delete=_PLAIN))
        for character, escape in _ESCAPES.items():
            if character[0] in present:
                data = data.replace(character, escape)
        text = self._start + data.replace(b"\n", self._line_end)
        if data.endswith(b"\n"):
            return text[: -len(self._start)]
        return text + self._end


# Marks the lines of one stream, piece by piece.
Mark = Prefix | Xml
