"""Tables of text, in aligned columns. Pure."""

from collections.abc import Container, Sequence

from poprun.words import printable

GAP = "  "


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int = 0,
    numbers: Container[int] = frozenset(),
) -> str:
    """Return rows below a head, whatever their cells contain.

    Args:
        width: Where lines are cut; 0 for nowhere.
        numbers: The columns that are aligned at their right.
    """
    cells = [[one_line(cell) for cell in row] for row in (head, *rows)]
    return "".join(f"{cut(line, width)}\n" for line in aligned(cells, numbers))


def aligned(
    rows: Sequence[Sequence[str]], numbers: Container[int] = frozenset()
) -> list[str]:
    """Return a line for each row, with columns as wide as their longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        GAP.join(
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def cut(text: str, width: int) -> str:
    """Return as much of a text as fits in so many columns; 0: all of it."""
    return text if not width or len(text) <= width else text[: width - 1] + "…"


def one_line(text: str) -> str:
    """Return a text without what would end its line or control the terminal."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")
