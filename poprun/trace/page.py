"""The page of `popctl trace --html`: a summary of a timeline -> HTML. Pure.

It needs no network and no scripts, so that it can be passed on and opened anywhere.
"""

from collections.abc import Iterator, Sequence
from html import escape
from math import floor, log10

from poprun.trace.analysis import (
    Slice,
    TraceSummary,
    conclusion,
    duration_text,
    missing_calls,
    row_name,
)
from poprun.trace.summary_tables import Cell, TraceTable, tables
from poprun.trace.timeline import LAUNCHER
from poprun.words import size

# The size of the picture, in units that the browser fits to its window.
WIDTH, LEFT, ROW, BAR = 1200, 130, 30, 16
# More calls than this are drawn as shares of time, in so many columns.
MOST_CALLS, COLUMNS = 4000, 600
MOST_SPANS = 4000
# The most calls, names of spans and columns of instances in the tables.
SLOWEST, MOST_NAMES, MOST_INSTANCES = 20, 50, 1000
# At most so many parts of the axis have a length of 1, 2 or 5.
MOST_TICKS = 10

# The title of each table by its name, and the text if it has no rows.
_SECTIONS = {
    "instances": ("Instances", "There are none."),
    "waits": ("Who waited for whom", "No instance waited for another."),
    "spans": ("The program's spans", "The program recorded none with popdist.trace()."),
    "slowest": ("The calls with the longest waits", "There are none."),
}

_STYLE = """
:root { color-scheme: light dark; --wait: #e8590c; --move: #1c7ed6; --span: #2f9e44;
  --life: #ced4da; --phase: #7048e8; --text: #212529; --rule: #adb5bd; --back: #fff; }
@media (prefers-color-scheme: dark) { :root { --life: #373a40; --text: #e9ecef;
  --rule: #5c5f66; --back: #1a1b1e; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1240px;
  padding: 0 1rem; color: var(--text); background: var(--back); }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .8rem; text-align: right;
  border-bottom: 1px solid var(--rule); }
th:first-child, td:first-child { text-align: left; }
svg { width: 100%; height: auto; display: block; }
svg text { font: 12px system-ui, sans-serif; fill: var(--text); }
.wait { fill: var(--wait); } .move { fill: var(--move); } .span { fill: var(--span); }
.life { fill: var(--life); } .phase { fill: var(--phase); fill-opacity: .75; }
.tick { stroke: var(--rule); stroke-width: .5; }
.key i { display: inline-block; width: .9em; height: .9em; margin-right: .3em; }
.key i:not(:first-child) { margin-left: 1em; }
.conclusion { font-size: 1.2em; }
"""


def as_page(summary: TraceSummary, title: str) -> str:
    """Return the page."""
    sentence = missing_calls(summary)
    note = f'<p class="gap">{escape(sentence)}</p>\n' if sentence else ""
    picture = "<p>Nothing is recorded.</p>"
    if summary.end:
        picture = f"{_key(summary)}\n{''.join(_timeline(summary))}"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n"
        f'<p class="conclusion">{escape(conclusion(summary))}</p>\n'
        f"{note}"
        f"<h2>Timeline</h2>\n{picture}\n"
        f"{''.join(map(_table, tables(summary, SLOWEST, MOST_NAMES, MOST_INSTANCES)))}"
        "</body></html>\n"
    )


# --- The picture


def _key(summary: TraceSummary) -> str:
    entries = (
        ("life", "instance running"),
        ("wait", "waiting for others in a call"),
        ("move", "moving data in a call"),
        ("span", "spans of the program"),
        ("phase", "phases of poprun"),
    )
    shown = "".join(
        f'<i style="background: var(--{name})"></i>{text}' for name, text in entries
    )
    note = ""
    if len(summary.calls) > MOST_CALLS:
        note = (
            f"<br>Each column is {duration_text(summary.end / COLUMNS)} long: the "
            "orange and the blue part show how much of it was spent waiting and moving "
            "data."
        )
    return f'<p class="key">{shown}{note}</p>'


def _timeline(summary: TraceSummary) -> Iterator[str]:
    rows = [row for row in sorted(summary.rows) if row == LAUNCHER]
    rows += list(summary.instances)
    height = ROW * len(rows) + 30
    yield f'<svg id="timeline" viewBox="0 0 {WIDTH} {height}" role="img">\n'
    yield from _ticks(summary.end, height)
    for index, row in enumerate(rows):
        top = index * ROW + 4
        yield (
            f'<g class="row" data-row="{row}"><text x="0" y="{top + 12}">'
            f"{escape(row_name(summary, row))}</text>\n"
        )
        yield from _row(summary, row, top)
        yield "</g>\n"
    yield "</svg>"


def _x(us: float, end: float) -> float:
    return LEFT + (WIDTH - LEFT) * us / (end or 1.0)


def _ticks(end: float, height: int) -> Iterator[str]:
    step = tick_length(end)
    for number in range(int(end / step + 0.001) + 1):
        x = _x(number * step, end)
        anchor = "end" if x > WIDTH - 30 else "middle"
        yield (
            f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 20}"/>'
            f'<text x="{x:.1f}" y="{height - 6}" text-anchor="{anchor}">'
            f"{duration_text(number * step) if number else 0}</text>\n"
        )


def tick_length(end: float) -> float:
    """Return how far apart the ticks of the axis are: 1, 2 or 5 of a power of ten."""
    power = 10.0 ** floor(log10(end / MOST_TICKS))
    return next(
        n * power for n in (1, 2, 5, 10) if n * power * MOST_TICKS >= end * 0.999
    )


def _row(summary: TraceSummary, row: int, top: float) -> Iterator[str]:
    end = summary.end
    spans = summary.spans if len(summary.spans) <= MOST_SPANS else ()
    for kind, slices, y, height in (
        ("life", summary.lives, top, BAR),
        ("phase", summary.phases, top, BAR),
        ("span", spans, top + BAR + 2, 5),
    ):
        for one in slices:
            if one.row == row:
                title = f"{one.name}: {duration_text(one.ended - one.began)}"
                yield _bar(kind, one.began, one.ended, end, y, height, title)
    calls = [call for call in summary.calls if call.row == row]
    if len(summary.calls) > MOST_CALLS:
        yield from _shares(calls, end, top)
    else:
        for call in calls:
            yield from _call(call, end, top)


def _bar(
    name: str,
    began: float,
    ended: float,
    end: float,
    top: float,
    height: float,
    title: str = "",
) -> str:
    x = _x(began, end)
    width = max(_x(ended, end) - x, 0.4)
    inner = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<rect class="{name}" x="{x:.2f}" y="{top:.1f}" width="{width:.2f}" '
        f'height="{height:.1f}">{inner}</rect>\n'
    )


def _call(call: Slice, end: float, top: float) -> Iterator[str]:
    """Yield the bars of a call: most calls wait first, and then move data."""
    waited = min(call.args["waited_us"], call.ended - call.began)
    title = (
        f"{call.args['call']}: {call.name} of {size(call.args['bytes'])}, waited "
        f"{duration_text(waited)}, moved {duration_text(call.args['moved_us'])}"
    )
    between = call.began + waited
    if waited:
        yield _bar("wait", call.began, between, end, top, BAR, title)
    if call.ended > between:
        yield _bar("move", between, call.ended, end, top, BAR, title)


def _shares(calls: Sequence[Slice], end: float, top: float) -> Iterator[str]:
    """Yield columns with the shares of waiting and moving in each."""
    each = end / COLUMNS
    waits, moves = [0.0] * COLUMNS, [0.0] * COLUMNS
    for call in calls:
        waited = min(call.args["waited_us"], call.ended - call.began)
        between = call.began + waited
        _add(waits, call.began, between, each)
        _add(moves, between, call.ended, each)
    for column, (wait, move) in enumerate(zip(waits, moves, strict=True)):
        at = column * each
        wait_height = BAR * min(wait / each, 1.0)
        move_height = min(BAR * move / each, BAR - wait_height)
        if wait_height:
            yield _bar("wait", at, at + each, end, top, wait_height)
        if move_height:
            yield _bar("move", at, at + each, end, top + wait_height, move_height)


def _add(columns: list[float], began: float, ended: float, each: float) -> None:
    column = int(began / each)
    while began < ended and column < len(columns):
        until = min(ended, (column + 1) * each)
        columns[column] += until - began
        began, column = until, column + 1


# --- The tables


def _table(table: TraceTable) -> str:
    title, nothing = _SECTIONS[table.name]
    content = f"<p>{nothing}</p>\n"
    if table.rows:
        head = [f"<th>{escape(text)}</th>" for text in table.head]
        rows = [head, *(map(_cell, row) for row in table.rows)]
        lines = "".join(f"<tr>{''.join(row)}</tr>\n" for row in rows)
        content = f'<table id="{table.name}">{lines}</table>\n'
    note = f"<p>{table.note}</p>\n" if table.note else ""
    return f"<h2>{title}</h2>\n{content}{note}"


def _cell(cell: Cell) -> str:
    """Return a cell; its colour shows how large the value is."""
    heat = f"background: rgba(232, 89, 12, {0.75 * cell.share:.2f})"
    style = f' style="{heat}"' if cell.share > 0.02 else ""
    return f"<td{style}>{escape(cell.text)}</td>"
