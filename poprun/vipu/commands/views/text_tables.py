"""Write tables as the original's commands do; scripts cut them at `|`. Pure."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

Row = Sequence[str]
# By the name of a column: the attribute that is shown in it, or what returns the text.
Columns = Mapping[str, str | Callable[[Any], Any]]


def format_values(columns: Columns, values: Sequence[Any], **attributes: Any) -> str:
    """Return a table with a row for each value; see `format_table`."""
    rows = [cells_of(columns, value) for value in values]
    return format_table(list(columns), rows, **attributes)


def format_value(columns: Columns, value: Any) -> str:
    """Return a table with a row for each attribute of a value."""
    return format_properties(properties_of(columns, value))


def properties_of(columns: Columns, value: Any) -> list[Row]:
    """Return the names and texts of the attributes of a value."""
    return list(zip(columns, cells_of(columns, value), strict=True))


def cells_of(columns: Columns, value: Any) -> tuple[str, ...]:
    """Return the cells of a row."""
    return tuple(
        _text(show(value) if callable(show) else attrgetter(show)(value))
        for show in columns.values()
    )


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(value)
    return "-" if value in (None, "") else str(value)


def format_table(
    header: Row,
    rows: Sequence[Row],
    *,
    widths: Sequence[int] = (),
    top_rule: bool = False,
) -> str:
    """Return a table with a header.

    Args:
        header: The names of the columns.
        rows: The cells below them.
        widths: How wide each column is at least.
        top_rule: Whether a rule comes before the header.
    """
    rows = [_printable(row) for row in rows]
    columns = _column_widths([header, *rows], widths)
    rule = _rule(columns)
    lines = [rule] if top_rule else []
    lines += [_line(header, columns), rule]
    lines += [*(_line(row, columns) for row in rows), rule]
    return "".join(f"{line}\n" for line in lines)


def format_properties(pairs: Sequence[Row], *, widths: Sequence[int] = ()) -> str:
    """Return a table of names and values, between rules."""
    pairs = [_printable(pair) for pair in pairs]
    columns = _column_widths(pairs, widths)
    rule = _rule(columns)
    lines = [rule, *(_line(pair, columns) for pair in pairs), rule]
    return "".join(f"{line}\n" for line in lines)


def _column_widths(rows: Sequence[Row], least: Sequence[int]) -> list[int]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for column, width in enumerate(least):
        widths[column] = max(widths[column], width)
    return widths


def _rule(widths: Sequence[int]) -> str:
    return "-" * (sum(widths) + 3 * len(widths) - 1)


def _line(cells: Row, widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return f" {' | '.join(padded)}".rstrip()


def _printable(cells: Row) -> Row:
    """Escape what would control a terminal: a server's names are not ours."""
    return [cell if cell.isprintable() else ascii(cell) for cell in cells]
