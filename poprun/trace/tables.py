"""The tables of `popctl trace`: what a timeline tells -> text. Pure."""

from collections.abc import Iterator, Sequence

from poprun.trace.analysis import (
    TraceSummary,
    conclusion,
    in_bytes,
    in_time,
    incompleteness,
    name_of,
    slowest,
    spans_by_name,
)

# A table of who waited for whom has at most so many columns.
MOST_COLUMNS = 8
# A table of spans has at most so many names.
MOST_NAMES = 10


def as_text(summary: TraceSummary, number_of_calls: int) -> str:
    """Return all tables."""
    parts = [
        incompleteness(summary) or conclusion(summary),
        _table(_instances(summary)) if summary.instances else "",
        _waits(summary),
        _spans(summary),
        _slowest(summary, number_of_calls),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    # The first column is a name, all others are numbers.
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _instances(summary: TraceSummary) -> list[tuple[str, ...]]:
    header = ("", "calls", "bytes", "waited", "moved", "last", "others waited")
    rows = [
        (
            name_of(summary, row),
            str(one.calls),
            in_bytes(one.nbytes),
            in_time(one.waited),
            in_time(one.moved),
            str(one.times_last),
            in_time(one.cost_to_others),
        )
        for row, one in summary.instances.items()
    ]
    return [header, *rows]


def _waits(summary: TraceSummary) -> str:
    """Return the table of who has waited for whom, for those waited for most."""
    totals: dict[int, float] = {}
    for (_, last), us in summary.waits.items():
        totals[last] = totals.get(last, 0.0) + us
    columns = sorted(sorted(totals, key=lambda row: -totals[row])[:MOST_COLUMNS])
    if not columns:
        return ""
    rows = [("waited for", *(name_of(summary, row) for row in columns))]
    for row in summary.instances:
        cells = (summary.waits.get((row, column)) for column in columns)
        texts = ("-" if us is None else in_time(us) for us in cells)
        rows.append((name_of(summary, row), *texts))
    return _table(rows)


def _spans(summary: TraceSummary) -> str:
    """Return the table of the program's spans, by name and process."""
    spans, left_out = spans_by_name(summary, MOST_NAMES)
    if not spans:
        return ""
    # A program may name a span with characters that control a terminal.
    titles = [repr(one.name)[1:-1] for one in spans]
    names = max(map(len, ("spans", *titles)))
    head = (f"{'spans':{names}}  of", "times", "total", "longest")
    rows = [
        (
            f"{title:{names}}  {name_of(summary, one.row)}",
            str(one.calls),
            in_time(one.total),
            in_time(one.longest),
        )
        for one, title in zip(spans, titles, strict=True)
    ]
    note = f"\nSpans of {left_out} more names took less time." if left_out else ""
    return _table([head, *rows]) + note


def _slowest(summary: TraceSummary, number: int) -> str:
    rows = list(_slowest_rows(summary, number))
    return _table([("slowest calls", *_COLUMNS), *rows]) if rows else ""


_COLUMNS = ("operation", "bytes", "at", "took", "waited in all", "last", "late by")


def _slowest_rows(summary: TraceSummary, number: int) -> Iterator[tuple[str, ...]]:
    for one in slowest(summary.together, number):
        yield (
            one.title,
            one.operation,
            in_bytes(one.nbytes),
            in_time(one.began),
            in_time(one.ended - one.began),
            in_time(sum(one.waits.values())),
            name_of(summary, one.last) if one.is_complete else "-",
            in_time(one.lateness),
        )
