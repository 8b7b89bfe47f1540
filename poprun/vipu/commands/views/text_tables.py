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


def format_value(columns: Columns, value: Any, **attributes: Any) -> str:
    """Return a table with a row for each attribute of a value."""
    return format_properties(properties_of(columns, value), **attributes)


def properties_of(columns: Columns, value: Any) -> list[Row]:
    """Return the names and texts of the attributes of a value."""
    return list(zip(columns, cells_of(columns, value), strict=True))


def cells_of(columns: Columns, value: Any) -> tuple[str, ...]:
    """Return the cells of a row."""
    return tuple(_text(_value_of(column, value)) for column in columns.values())


def json_value(template: Any, value: Any) -> Any:
    """Return a value for JSON.

    Args:
        template: Columns, of which some may be templates of their own.
        value: What has the attributes.
    """
    if isinstance(template, Mapping):
        return {name: json_value(part, value) for name, part in template.items()}
    return _value_of(template, value)


def _value_of(column: str | Callable[[Any], Any], value: Any) -> Any:
    return column(value) if callable(column) else attrgetter(column)(value)


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
    head, *lines = _lines([header, *rows], widths)
    rule = "-" * len(head)
    parts = [rule] if top_rule else []
    return _text_of([*parts, head, rule, *lines, rule])


def format_properties(pairs: Sequence[Row], *, widths: Sequence[int] = ()) -> str:
    """Return a table of names and values, between rules."""
    lines = _lines(pairs, widths)
    rule = "-" * len(lines[0])
    return _text_of([rule, *lines, rule])


def _lines(rows: Sequence[Row], least: Sequence[int]) -> list[str]:
    """Return a line for each row, all of one length; no column is too narrow."""
    rows = [list(map(_printable, row)) for row in rows]
    columns = zip(*rows, strict=True)
    widths = [max(map(len, column)) for column in columns]
    for column, width in enumerate(least):
        widths[column] = max(widths[column], width)
    return [f" {' | '.join(map(str.ljust, row, widths))} " for row in rows]


def _text_of(lines: Sequence[str]) -> str:
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _printable(cell: str) -> str:
    """Escape what would control a terminal: a server's names are not ours."""
    return cell if cell.isprintable() else ascii(cell)
