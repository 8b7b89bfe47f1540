"""The table of --summary, and the sentence about all instances. Pure."""

from collections.abc import Mapping, Sequence

from poprun.options.programs import name_of
from poprun.output.terminal import clock
from poprun.result.instances import (
    LOST,
    NOT_STARTED,
    STATES,
    STOPPED,
    InstanceEnd,
)
from poprun.texts.tables import aligned
from poprun.words import counted, format_ranges, size

INDENT = "    "
# The columns that a narrow terminal does not show, the first one first.
LEAST_IMPORTANT = ("CPU", "peak memory", "wall")


def in_a_line(ends: Sequence[InstanceEnd]) -> str:
    """Return a sentence: how many instances ended how, and what they used."""
    parts = []
    for state in STATES:
        ranks = [end.rank for end in ends if end.state == state]
        if ranks:
            parts.append(f"{len(ranks)} {state} ({format_ranges(ranks)})")
    usage = []
    walls = [end.wall_s for end in ends if end.wall_s is not None]
    if walls:
        usage.append(f"{_seconds(max(walls))} at most")
    peaks = [(end.peak_kib, end.rank) for end in ends if end.peak_kib]
    if peaks:
        peak, rank = max(peaks, key=lambda pair: (pair[0], -pair[1]))
        usage.append(f"peak memory {size(peak * 1024)} (instance {rank})")
    sentence = f"{counted(len(ends), 'instance')}: {', '.join(parts)}"
    return "; ".join([sentence, *usage]) + "."


def table(ends: Sequence[InstanceEnd], columns: int | None = None) -> str:
    """Return a table with a line for each instance.

    Args:
        columns: The width of the terminal that shows it; None where there is none. A
            narrow one gets fewer columns.
    """
    several = len({tuple(end.program) for end in ends}) > 1
    cells = {
        "instance": [str(end.rank) for end in ends],
        **({"program": [name_of(end.program) for end in ends]} if several else {}),
        "host": [end.host for end in ends],
        "exit": [_exit(end) for end in ends],
        "wall": [_seconds(end.wall_s) for end in ends],
        "CPU": [_seconds(end.cpu_s) for end in ends],
        "peak memory": [_memory(end) for end in ends],
    }
    lines = _lines(cells)
    for title in LEAST_IMPORTANT:
        if columns is None or max(map(len, lines)) <= columns:
            break
        del cells[title]
        lines = _lines(cells)
    return "\n".join(["how the instances ended:", *lines])


def _lines(cells: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the lines of a table, from its columns by their titles."""
    rows = [tuple(cells), *zip(*cells.values(), strict=True)]
    return [INDENT + line for line in aligned(rows)]


def _memory(end: InstanceEnd) -> str:
    return "-" if end.peak_kib is None else size(end.peak_kib * 1024)


def _exit(end: InstanceEnd) -> str:
    if end.state in (LOST, NOT_STARTED):
        return end.state
    how = end.signal_name or str(end.exit_code)
    return f"{how}, stopped" if end.state == STOPPED else how


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds < 100 else clock(seconds)
