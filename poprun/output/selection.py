"""The instances with visible output: --only-output-from-instance. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

ALL, FIRST, FAILED = "all", "first", "failed"
# No job has so many instances, and int() stays cheap below it.
_MOST_DIGITS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A set of instances, and whether those that fail are to be shown as well."""

    # The first and the last instance of each range; None for all of them.
    ranges: tuple[tuple[int, int], ...] | None = None
    failed: bool = False

    def __contains__(self, rank: int) -> bool:
        if self.ranges is None:
            return True
        return any(first <= rank <= last for first, last in self.ranges)

    @property
    def largest(self) -> int:
        """The largest index that is named; -1 if none is."""
        return max((last for _, last in self.ranges or ()), default=-1)


def parse(text: str) -> Selection:
    """Read a set, such as 0,4-7 or first,failed.

    Raises:
        ValueError: It is none; the text says why, or is empty.
    """
    words = text.lower().split(",")
    ranges = tuple(_ranges(words))
    if ALL in words:
        return Selection()
    return Selection(ranges=ranges, failed=FAILED in words)


def _ranges(words: list[str]) -> Iterator[tuple[int, int]]:
    for word in words:
        if word in (ALL, FAILED):
            continue
        first, hyphen, last = ("0" if word == FIRST else word).partition("-")
        for digits in (first, last) if hyphen else (first,):
            if not (digits.isascii() and digits.isdigit()):
                raise ValueError
            if len(digits) > _MOST_DIGITS:
                raise ValueError(f"no job has an instance {digits[:12]}")
        if hyphen and int(last) < int(first):
            raise ValueError(f"{word} runs backwards; {last}-{first} would not")
        yield int(first), int(last or first)
