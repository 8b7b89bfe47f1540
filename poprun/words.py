"""The words for true and false, and texts: numbers, sizes, ranges, JSON, terminals."""

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby

# In lower case, as options, files and variables may write them.
TRUE_WORDS = ("yes", "on", "true", "1")
FALSE_WORDS = ("no", "off", "false", "0")

# The rule of is_variable_name, for messages.
NAME_RULE = (
    "a name consists of letters, digits and '_', and does not begin with a digit"
)


def is_variable_name(text: str) -> bool:
    """Return whether every shell and every program can read a variable of this name."""
    return text.isascii() and text.isidentifier()


def quoted(text: str) -> str:
    """Quote a text, shortened to 100 characters."""
    return repr(text if len(text) <= 100 else text[:100] + "...")


def alternatives(words: Sequence[str]) -> str:
    """Write `a, b or c`."""
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def counted(number: int, noun: str) -> str:
    """Write a number with its noun: 1 IPU, 2 IPUs."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def three_digits(number: float) -> str:
    """Write a number with three digits, or more before its point."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def size(num_bytes: float) -> str:
    """Write a number of bytes: 12 B, 1.5 KiB, 3 MiB."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    # 1023.5 would be rounded to 1024, which is 1 of the next unit.
    while num_bytes >= 1023.5 and len(units) > 1:
        num_bytes /= 1024
        units.pop(0)
    return f"{three_digits(num_bytes)} {units[0]}"


def json_text(words: str) -> str:
    """Return a text that every reader of JSON accepts: bytes of no character escaped.

    An argument, a variable or the name of a file may have any bytes.
    """
    data = words.encode(errors="surrogateescape")
    return data.decode(errors="backslashreplace")


def format_ranges(numbers: Iterable[int]) -> str:
    """Write numbers of CPUs, nodes or replicas as the kernel does: 0-3,8."""
    return ",".join(
        f"{first}" if first == last else f"{first}-{last}"
        for first, last in _ranges(numbers)
    )


def describe_instances(instances: Collection[int]) -> str:
    """Write numbers of instances: instances 0 to 3 and 7, or instance 3."""
    parts: list[str] = []
    for first, last in _ranges(instances):
        if last - first > 1:
            parts.append(f"{first} to {last}")
        else:
            parts += map(str, range(first, last + 1))
    *others, last_part = parts
    before = f"{', '.join(others)} and " if others else ""
    return f"instance{'' if len(instances) == 1 else 's'} {before}{last_part}"


def _ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last number of each range, in their order."""
    # In a range, a number minus its place among all numbers stays the same.
    places = enumerate(sorted(set(numbers)))
    ranges = (list(pairs) for _, pairs in groupby(places, lambda p: p[1] - p[0]))
    return [(pairs[0][1], pairs[-1][1]) for pairs in ranges]


def printable(text: str) -> str:
    """Escape the characters that would control a terminal."""
    return "".join(
        c
        if c.isprintable() or c in "\n\t"
        else c.encode("unicode_escape").decode()
        if not "\udc80" <= c <= "\udcff"
        else f"\\x{ord(c) - 0xDC00:02x}"
        for c in text
    )
