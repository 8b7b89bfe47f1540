"""The page of `popctl trace --html`: what a timeline tells -> HTML in one file. Pure.

It needs no network and no scripts, so that it can be passed on and opened anywhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import floor, log10

from poprun.trace.analysis import (
    Slice,
    TraceSummary,
    conclusion,
    in_bytes,
    in_time,
    incompleteness,
    name_of,
    slowest,
    spans_by_name,
)
from poprun.trace.timeline import LAUNCHER

# The size of the picture, in units that the browser fits to its window.
WIDTH, LEFT, ROW, BAR = 1200, 130, 30, 16
# More calls than this are drawn as shares of time, in so many columns.
MOST_CALLS, COLUMNS = 4000, 600
MOST_SPANS = 4000
SLOWEST = 20
MOST_NAMES = 50
# At most so many parts of the axis have a length of 1, 2 or 5.
MOST_TICKS = 10

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
.key i { display: inline-block; width: .9em; height: .9em; margin: 0 .3em 0 1em; }
.conclusion { font-size: 1.2em; }
"""


def as_page(summary: TraceSummary, title: str) -> str:
    """Return the page."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n"
        f'<p class="conclusion">'
        f"{escape(incompleteness(summary) or conclusion(summary))}</p>\n"
        f"<h2>Timeline</h2>\n{_picture(summary)}\n"
        f"<h2>Instances</h2>\n{_instances(summary)}\n"
        f"<h2>Who waited for whom</h2>\n{_waits(summary)}\n"
        f"<h2>The program's spans</h2>\n{_spans(summary)}\n"
        f"<h2>The calls with the longest waits</h2>\n{_slowest(summary)}\n"
        "</body></html>\n"
    )


# --- The picture


def _picture(summary: TraceSummary) -> str:
    if not summary.end:
        return "<p>Nothing is recorded.</p>"
    return f"{_key(summary)}\n{''.join(_timeline(summary))}"


def _key(summary: TraceSummary) -> str:
    entries = (
        ("life", "the instance lives"),
        ("wait", "waits for others in a call"),
        ("move", "moves data in a call"),
        ("span", "spans of the program"),
        ("phase", "phases of poprun"),
    )
    shown = "".join(
        f'<i style="background: var(--{name})"></i>{text}' for name, text in entries
    )
    note = ""
    if len(summary.calls) > MOST_CALLS:
        note = (
            f" Each column is {in_time(summary.end / COLUMNS)} long: the orange and "
            "the blue part are the shares of waiting and moving in it."
        )
    return f'<p class="key">{shown}.{note}</p>'


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
            f"{escape(name_of(summary, row))}</text>\n"
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
            f"{in_time(number * step)}</text>\n"
        )


def tick_length(end: float) -> float:
    """Return how far apart the ticks of the axis are: 1, 2 or 5 of a power of ten."""
    power = 10.0 ** floor(log10(end / MOST_TICKS))
    return next(
        n * power for n in (1, 2, 5, 10) if n * power * MOST_TICKS >= end * 0.999
    )


def _row(summary: TraceSummary, row: int, top: float) -> Iterator[str]:
    end = summary.end
    for name, slices in (("life", summary.lives), ("phase", summary.phases)):
        for one in slices:
            if one.row == row:
                title = f"{one.name}: {in_time(one.ended - one.began)}"
                yield _bar(name, one.began, one.ended, end, top, BAR, title)
    calls = [call for call in summary.calls if call.row == row]
    if len(summary.calls) > MOST_CALLS:
        yield from _shares(calls, end, top)
    else:
        for call in calls:
            yield from _call(call, end, top)
    if len(summary.spans) <= MOST_SPANS:
        for span in summary.spans:
            if span.row == row:
                title = f"{span.name}: {in_time(span.ended - span.began)}"
                at = top + BAR + 2
                yield _bar("span", span.began, span.ended, end, at, 5, title)


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
    """Yield a call: as a rule it waits first, and moves then."""
    waited = min(call.args["waited_us"], call.ended - call.began)
    title = (
        f"{call.args['call']}: {call.name} of {in_bytes(call.args['bytes'])}, waited "
        f"{in_time(waited)}, moved {in_time(call.args['moved_us'])}"
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


def _table(
    name: str, header: Sequence[str], rows: Sequence[Sequence[tuple[str, str]]]
) -> str:
    """Return a table of cells, each with the style that it has besides."""
    head = "".join(f"<th>{escape(text)}</th>" for text in header)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{f' style={chr(34)}{style}{chr(34)}' if style else ''}>"
            f"{escape(text)}</td>"
            for text, style in row
        )
        + "</tr>\n"
        for row in rows
    )
    return f'<table id="{name}"><tr>{head}</tr>\n{body}</table>'


def _heat(value: float, most: float) -> str:
    """Return a style that shows how much of the most this is."""
    share = value / most if most else 0.0
    return f"background: rgba(232, 89, 12, {0.75 * share:.2f})" if share > 0.02 else ""


def _instances(summary: TraceSummary) -> str:
    header = (
        *("instance", "calls", "bytes", "waited", "moved"),
        *("began last", "the others waited for it"),
    )
    every = summary.instances.values()
    most_waited = max((one.waited for one in every), default=0.0)
    most_cost = max((one.cost_to_others for one in every), default=0.0)
    rows = [
        [
            (one.title, ""),
            (str(one.calls), ""),
            (in_bytes(one.nbytes), ""),
            (in_time(one.waited), _heat(one.waited, most_waited)),
            (in_time(one.moved), ""),
            (f"{one.times_last} times", ""),
            (in_time(one.cost_to_others), _heat(one.cost_to_others, most_cost)),
        ]
        for one in every
    ]
    return _table("instances", header, rows)


def _waits(summary: TraceSummary) -> str:
    columns = sorted({last for _, last in summary.waits})
    if not columns:
        return "<p>None did.</p>"
    most = max(summary.waits.values())
    header = ["waited for", *(name_of(summary, row) for row in columns)]
    rows = [
        [(name_of(summary, row), ""), *_cells(summary.waits, row, columns, most)]
        for row in summary.instances
    ]
    return _table("waits", header, rows)


def _cells(
    waits: Mapping[tuple[int, int], float],
    row: int,
    columns: Sequence[int],
    most: float,
) -> Iterator[tuple[str, str]]:
    for column in columns:
        us = waits.get((row, column))
        yield ("-", "") if us is None else (in_time(us), _heat(us, most))


def _spans(summary: TraceSummary) -> str:
    spans, left_out = spans_by_name(summary, MOST_NAMES)
    if not spans:
        return "<p>It has recorded none with popdist.trace().</p>"
    most: dict[str, float] = {}
    for one in spans:
        most[one.name] = max(most.get(one.name, 0.0), one.total)
    rows = [
        [
            (one.name, ""),
            (name_of(summary, one.row), ""),
            (str(one.calls), ""),
            (in_time(one.total), _heat(one.total, most[one.name])),
            (in_time(one.longest), ""),
        ]
        for one in spans
    ]
    note = f"<p>Spans of {left_out} more names took less time.</p>" if left_out else ""
    return _table("spans", ("span", "of", "times", "total", "longest"), rows) + note


def _slowest(summary: TraceSummary) -> str:
    header = (
        *("call", "operation", "bytes", "began at", "took"),
        *("all waits together", "began last", "after the first"),
    )
    rows = [
        [
            (one.title, ""),
            (one.operation, ""),
            (in_bytes(one.nbytes), ""),
            (in_time(one.began), ""),
            (in_time(one.ended - one.began), ""),
            (in_time(sum(one.waits.values())), ""),
            (name_of(summary, one.last) if one.is_complete else "-", ""),
            (in_time(one.lateness), ""),
        ]
        for one in slowest(summary.together, SLOWEST)
    ]
    return _table("slowest", header, rows) if rows else "<p>There is none.</p>"
