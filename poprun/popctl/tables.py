"""Tables of text, and the words that stand in them."""

import shutil
import sys
from collections.abc import Sequence

from poprun.log import printable

GAP = "  "


def table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int = 0) -> str:
    """Return rows below a head, in columns as wide as their longest cell.

    Args:
        width: Where lines are cut; 0 for nowhere.
    """
    cells = [head, *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        padded = (cell.ljust(n) for cell, n in zip(row, widths, strict=True))
        lines.append(cut(GAP.join(padded).rstrip(), width))
    return "".join(f"{line}\n" for line in lines)


def cut(text: str, width: int) -> str:
    """Return as much of a text as fits in so many columns; 0: all of it."""
    return text if not width or len(text) <= width else text[: width - 1] + "…"


def output_width() -> int:
    """Return the columns of the terminal that stdout is, 0 if it is none."""
    if sys.stdout is None or not sys.stdout.isatty():
        return 0
    return shutil.get_terminal_size().columns


def memory(kib: float) -> str:
    """Write an amount of memory in three digits: 812 KiB, 1.25 GiB."""
    value, units = float(kib), ["KiB", "MiB", "GiB", "TiB"]
    while value >= 1000 and len(units) > 1:
        value /= 1024
        units.pop(0)
    digits = 0 if value >= 100 or units[0] == "KiB" else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {units[0]}"


def one_line(text: str) -> str:
    """Return a text without what would end its line or control the terminal."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")
