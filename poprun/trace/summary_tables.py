"""The tables of `popctl trace`: a summary of a trace -> rows, and their text. Pure."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from poprun.texts.tables import table
from poprun.trace.analysis import (
    TraceSummary,
    conclusion,
    duration_text,
    missing_calls,
    row_name,
    slowest,
)
from poprun.words import size

# The most columns of the table of waits, and the most names of the table of spans, if
# they are printed.
MOST_COLUMNS = 8
MOST_NAMES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A text, and its share of the largest value in the table, which the page shows."""

    text: str
    share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTable:
    """Rows below a head. The first columns are names, the others numbers."""

    name: str
    head: tuple[str, ...]
    rows: list[tuple[Cell, ...]]
    num_names: int = 1
    # A line below the table.
    note: str = ""


def tables(
    summary: TraceSummary, number_of_calls: int, most_names: int, most_columns: int
) -> Iterator[TraceTable]:
    """Yield all tables; some may have no rows."""
    yield _instances(summary)
    yield _waits(summary, most_columns)
    yield _spans(summary, most_names)
    yield _slowest(summary, number_of_calls)


def as_text(summary: TraceSummary, number_of_calls: int) -> str:
    """Return the text of all tables that have rows."""
    head = (conclusion(summary), missing_calls(summary))
    parts = [f"{sentence}\n" for sentence in head if sentence]
    for each in tables(summary, number_of_calls, MOST_NAMES, MOST_COLUMNS):
        if each.rows:
            rows = [[cell.text for cell in row] for row in each.rows]
            numbers = range(each.num_names, len(each.head))
            text = table(each.head, rows, numbers=numbers)
            parts.append(text + (f"{each.note}\n" if each.note else ""))
    return "\n".join(parts)


def _cells(*texts: str) -> tuple[Cell, ...]:
    return tuple(Cell(text=text) for text in texts)


def _time(us: float, most: float) -> Cell:
    return Cell(text=duration_text(us), share=us / most if most else 0.0)


def _instances(summary: TraceSummary) -> TraceTable:
    every = summary.instances.values()
    most_waited = max((one.waited for one in every), default=0.0)
    most_cost = max((one.cost_to_others for one in every), default=0.0)
    rows = [
        (
            *_cells(one.title, str(one.calls), size(one.nbytes)),
            _time(one.waited, most_waited),
            *_cells(duration_text(one.moved), str(one.times_last)),
            _time(one.cost_to_others, most_cost),
        )
        for one in every
    ]
    head = ("instance", "calls", "bytes", "waited", "moved", "last", "others waited")
    return TraceTable(name="instances", head=head, rows=rows)


def _waits(summary: TraceSummary, most_columns: int) -> TraceTable:
    """Return the table of waits, with a column for each of the latest instances."""
    totals: dict[int, float] = {}
    for (_, last), us in summary.waits.items():
        totals[last] = totals.get(last, 0.0) + us
    columns = sorted(sorted(totals, key=lambda row: -totals[row])[:most_columns])
    head = ("waited for", *(row_name(summary, row) for row in columns))
    most = max(summary.waits.values(), default=0.0)
    rows = []
    for row in summary.instances if columns else ():
        waits = (summary.waits.get((row, column)) for column in columns)
        times = (Cell(text="-") if us is None else _time(us, most) for us in waits)
        rows.append((Cell(text=row_name(summary, row)), *times))
    return TraceTable(name="waits", head=head, rows=rows)


def _spans(summary: TraceSummary, most_names: int) -> TraceTable:
    """Return the program's spans, by name and process.

    The order of the names is by the longest time that one process has spent in them.
    If instances differ in this time, it tells why one of them is late.
    """
    lengths: defaultdict[str, dict[int, list[float]]] = defaultdict(dict)
    for span in summary.spans:
        of_name = lengths[span.name].setdefault(span.row, [])
        of_name.append(span.ended - span.began)
    most = {name: max(map(sum, rows.values())) for name, rows in lengths.items()}
    names = sorted(most, key=lambda name: (-most[name], name))
    rows = [
        (
            *_cells(name, row_name(summary, row), str(len(own))),
            _time(sum(own), most[name]),
            Cell(text=duration_text(max(own))),
        )
        for name in names[:most_names]
        for row, own in sorted(lengths[name].items())
    ]
    note = ""
    if len(names) > most_names:
        left_out = len(names) - most_names
        note = f"{left_out} more names are not shown; their spans took less time."
    head = ("spans", "of", "times", "total", "longest")
    return TraceTable(name="spans", head=head, rows=rows, num_names=2, note=note)


def _slowest(summary: TraceSummary, number: int) -> TraceTable:
    rows = []
    for one in slowest(summary.joint_calls, number):
        last, began = one.last, min(part.began for part in one.parts)
        ended = max(part.ended for part in one.parts)
        times = began, ended - began, one.waited
        row = _cells(
            *(
                one.title,
                last.name,
                size(last.args["bytes"]),
                *map(duration_text, times),
            ),
            row_name(summary, last.row) if one.is_complete else "-",
            duration_text(last.began - began),
        )
        rows.append(row)
    head = ("slowest calls", "operation", "bytes", "at", "took", "waited in all")
    return TraceTable(name="slowest", head=(*head, "last", "late by"), rows=rows)
