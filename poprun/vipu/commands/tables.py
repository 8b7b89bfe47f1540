"""Tables as V-IPU's commands write them, and JSON. Scripts cut the tables at `|`.

Both are made of fields: the name of the column, the path in JSON, and the attribute or
a function of the value. Either name may be empty.
"""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from operator import attrgetter
from typing import Any

Field = tuple[str, str, str | Callable[[Any], Any]]
Fields = Sequence[Field]
Row = Sequence[str]


def to_json(fields: Fields, value: Any) -> dict[str, Any]:
    """Return a value for JSON: `spec.size` is in the object `spec`."""
    result: dict[str, Any] = {}
    for _, path, part in fields:
        outer, _, key = path.rpartition(".")
        place = result.setdefault(outer, {}) if outer else result
        if key:
            place[key] = _read(part, value)
    return result


def list_json(fields: Fields, values: Sequence[Any]) -> list[dict[str, Any]]:
    """Return several values for JSON."""
    return [to_json(fields, value) for value in values]


def header(fields: Fields) -> list[str]:
    """Return the names of the columns."""
    return [name for name, _, _ in fields if name]


def cells(fields: Fields, value: Any) -> list[str]:
    """Return the cells of a row."""
    return [_text(_read(part, value)) for name, _, part in fields if name]


def format_list(fields: Fields, values: Sequence[Any], **layout: Any) -> str:
    """Return a table with a row for each value; see `format_table` for the layout."""
    rows = [cells(fields, value) for value in values]
    return format_table(rows, header(fields), **layout)


def format_value(fields: Fields, value: Any, **layout: Any) -> str:
    """Return a table with a row for each field of a value."""
    rows = dict(zip(header(fields), cells(fields, value), strict=True))
    return format_table(list(rows.items()), **layout)


def format_table(
    rows: Sequence[Row],
    header: Row = (),
    *,
    widths: Sequence[int] = (),
    top_rule: bool = False,
) -> str:
    """Return a table; without a header it is between two rules.

    Args:
        rows: The cells.
        header: The names of the columns.
        widths: The least width of each column.
        top_rule: Begin with a rule even if there is a header.
    """
    # A table of all IPUs has most rows many times: each is formatted once.
    keys = list(map(tuple, [header, *rows] if header else rows))
    # A server's names must not control the terminal.
    texts = {
        key: [cell if cell.isprintable() else ascii(cell) for cell in key]
        for key in dict.fromkeys(keys)
    }
    needed = [max(map(len, column)) for column in zip(*texts.values(), strict=True)]
    columns = list(map(max, zip_longest(needed, widths, fillvalue=0)))
    formatted = {
        key: f" {' | '.join(map(str.ljust, row, columns))} "
        for key, row in texts.items()
    }
    lines = [formatted[key] for key in keys]
    rule = "-" * len(lines[0])
    if header:
        lines.insert(1, rule)
    if top_rule or not header:
        lines.insert(0, rule)
    return "".join(f"{line.rstrip()}\n" for line in [*lines, rule])


def _read(part: str | Callable[[Any], Any], value: Any) -> Any:
    return part(value) if callable(part) else attrgetter(part)(value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = " ".join(value) if isinstance(value, tuple) else value
    return "-" if text in (None, "") else str(text)
