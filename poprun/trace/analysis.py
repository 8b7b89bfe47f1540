"""Who waited for whom in a job: the events of a timeline -> tables. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poprun.trace.timeline import CALL, LAUNCHER, PHASE, SPAN, UNRECORDED
from poprun.words import three_digits

# So many processes that had no room for all their calls are named.
MOST_GAPS = 4


class TraceError(ValueError):
    """A file is no timeline of poprun's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Something that lasts: a call, a span, a life; times in microseconds."""

    name: str
    row: int
    line: int
    began: float
    ended: float
    # Any, because arguments have whatever their slice needs.
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """A call that several instances have made together.

    waits: How long each has waited, by its row.
    last: The row of the instance that began it last, and by how much after the first.
    """

    title: str
    operation: str
    nbytes: int
    began: float
    ended: float
    waits: Mapping[int, float]
    last: int
    lateness: float
    is_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSummary:
    """What one process has done; times in microseconds."""

    title: str
    calls: int
    nbytes: int
    waited: float
    moved: float
    # How often it was the last to begin, and how long the others waited then, together.
    times_last: int
    cost_to_others: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanSummary:
    """The spans of one name in a process; times in microseconds."""

    name: str
    row: int
    calls: int
    total: float
    longest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """What a timeline tells.

    waits: By row of who waited and row of who was waited for, how long.
    unrecorded: By row of a process, for how many later calls there was no room.
    is_complete: Whether poprun has written it at the end of the job.
    """

    rows: Mapping[int, str]
    lines: Mapping[tuple[int, int], str]
    phases: Sequence[Slice]
    lives: Sequence[Slice]
    calls: Sequence[Slice]
    spans: Sequence[Slice]
    together: Sequence[Together]
    instances: Mapping[int, InstanceSummary]
    waits: Mapping[tuple[int, int], float]
    unrecorded: Mapping[int, int]
    end: float
    is_complete: bool


def analyse(document: Any) -> TraceSummary:
    """Return what a timeline tells.

    Raises:
        TraceError: It is none of poprun's.
    """
    if not isinstance(document, dict):
        raise TraceError("its JSON is not an object")
    about, events = document.get("otherData"), document.get("traceEvents")
    if not isinstance(about, dict) or "poprun" not in about:
        raise TraceError("its otherData does not name poprun")
    if not isinstance(events, list):
        raise TraceError("it has no list of traceEvents")
    try:
        return _analyse(events, is_complete=about.get("complete", "yes") == "yes")
    except KeyError as error:
        raise TraceError(f"one of its events lacks {error}") from None
    except (TypeError, AttributeError, ValueError):
        raise TraceError("one of its events has a value of another type") from None


def _analyse(events: Iterable[Any], *, is_complete: bool) -> TraceSummary:
    rows: dict[int, str] = {}
    lines: dict[tuple[int, int], str] = {}
    slices: dict[str, list[Slice]] = {}
    unrecorded: dict[int, int] = {}
    for event in events:
        if event["ph"] == "M" and event["name"] == "process_name":
            rows[event["pid"]] = event["args"]["name"]
        elif event["ph"] == "M" and event["name"] == "thread_name":
            lines[event["pid"], event["tid"]] = event["args"]["name"]
        elif event["ph"] == "X":
            slices.setdefault(event.get("cat", ""), []).append(_slice(event))
        elif event["ph"] == "i" and UNRECORDED in event.get("args", {}):
            unrecorded[event["pid"]] = int(event["args"][UNRECORDED])
    calls = slices.get(CALL, [])
    together = _together(calls)
    everything = [one for several in slices.values() for one in several]
    return TraceSummary(
        rows=rows,
        lines=lines,
        phases=slices.get(PHASE, []),
        lives=slices.get("life", []),
        calls=calls,
        spans=slices.get(SPAN, []),
        together=together,
        instances=_instances(rows, calls, together),
        waits=_waits(together),
        unrecorded=unrecorded,
        end=max((one.ended for one in everything), default=0.0),
        is_complete=is_complete,
    )


def _slice(event: Any) -> Slice:
    began = event["ts"]
    return Slice(
        name=event["name"],
        row=event["pid"],
        line=event["tid"],
        began=began,
        ended=began + event["dur"],
        args=event.get("args", {}),
    )


def _together(calls: Sequence[Slice]) -> list[Together]:
    by_call: dict[str, list[Slice]] = {}
    for call in calls:
        if ", call " in call.args["call"]:
            by_call.setdefault(call.args["call"], []).append(call)
    return [_as_one(parts) for parts in by_call.values()]


def _as_one(parts: Sequence[Slice]) -> Together:
    last = max(parts, key=lambda part: part.began)
    first = min(part.began for part in parts)
    return Together(
        title=last.args["call"],
        operation=last.name,
        nbytes=last.args["bytes"],
        began=first,
        ended=max(part.ended for part in parts),
        waits={part.row: part.args["waited_us"] for part in parts},
        last=last.row,
        lateness=last.began - first,
        is_complete=len(parts) == last.args["members"],
    )


def _counting(together: Sequence[Together]) -> list[Together]:
    """Return the calls in which it is known who was last: one of several members."""
    return [one for one in together if one.is_complete and len(one.waits) > 1]


def _instances(
    rows: Mapping[int, str], calls: Sequence[Slice], together: Sequence[Together]
) -> dict[int, InstanceSummary]:
    own: dict[int, list[Slice]] = {}
    for call in calls:
        own.setdefault(call.row, []).append(call)
    last: dict[int, list[float]] = {}
    for one in _counting(together):
        others = sum(us for row, us in one.waits.items() if row != one.last)
        last.setdefault(one.last, []).append(others)
    return {
        row: InstanceSummary(
            title=title,
            calls=len(own.get(row, ())),
            nbytes=sum(call.args["bytes"] for call in own.get(row, ())),
            waited=sum(call.args["waited_us"] for call in own.get(row, ())),
            moved=sum(call.args["moved_us"] for call in own.get(row, ())),
            times_last=len(last.get(row, ())),
            cost_to_others=sum(last.get(row, ())),
        )
        for row, title in sorted(rows.items())
        if row != LAUNCHER
    }


def _waits(together: Sequence[Together]) -> dict[tuple[int, int], float]:
    waits: dict[tuple[int, int], float] = {}
    for one in _counting(together):
        for row, us in one.waits.items():
            if row != one.last:
                waits[row, one.last] = waits.get((row, one.last), 0.0) + us
    return waits


def slowest(together: Sequence[Together], number: int) -> list[Together]:
    """Return the calls in which the instances have waited for the longest time."""
    # In a call of one member no instance waits for another.
    several = [one for one in together if len(one.waits) > 1 or not one.is_complete]
    return sorted(several, key=lambda one: -sum(one.waits.values()))[:number]


def spans_by_name(
    summary: TraceSummary, number_of_names: int
) -> tuple[list[SpanSummary], int]:
    """Return the spans by name and process, and how many names are left out.

    The names come in the order of the time that one process has spent in them at most:
    where that differs between instances, it tells why one of them is late.
    """
    lengths: dict[tuple[str, int], list[float]] = {}
    for span in summary.spans:
        lengths.setdefault((span.name, span.row), []).append(span.ended - span.began)
    most: dict[str, float] = {}
    for (name, _), own in lengths.items():
        most[name] = max(most.get(name, 0.0), sum(own))
    names = sorted(most, key=lambda name: (-most[name], name))
    spans = [
        SpanSummary(
            name=name, row=row, calls=len(own), total=sum(own), longest=max(own)
        )
        for name in names[:number_of_names]
        for (other, row), own in sorted(lengths.items())
        if other == name
    ]
    return spans, max(len(names) - number_of_names, 0)


def in_time(us: float) -> str:
    """Write a time: 12.3 us, 4.56 ms, 1.23 s."""
    for unit, length in (("s", 1e6), ("ms", 1e3)):
        if us >= length:
            return f"{three_digits(us / length)} {unit}"
    return f"{three_digits(us)} us"


def name_of(summary: TraceSummary, row: int) -> str:
    """Return what a row is called, without its process: "instance 3"."""
    return summary.rows.get(row, f"row {row}").partition(" (")[0]


def incompleteness(summary: TraceSummary) -> str:
    """Return a sentence about what an incomplete trace lacks; "" of a complete one."""
    if summary.is_complete:
        return ""
    return (
        "The trace is incomplete and contains no calls: poprun writes them when "
        "the job ends. The job is still running, poprun was killed, or the file "
        "could not be written."
    )


def gap(summary: TraceSummary) -> str:
    """Return a sentence about calls that no process had room for; "" of none."""
    most = sorted(summary.unrecorded.items(), key=lambda item: -item[1])
    lacks = [f"the last {number} of {name_of(summary, row)}" for row, number in most]
    if not lacks:
        return ""
    more = f", and those of {len(lacks) - MOST_GAPS} more processes"
    return (
        "Some calls are missing from the trace, because there was no room for "
        "them: "
        f"{', '.join(lacks[:MOST_GAPS])}{more if len(lacks) > MOST_GAPS else ''}."
    )


def conclusion(summary: TraceSummary) -> str:
    """Return a sentence about who the others have waited for most."""
    costs = {row: one.cost_to_others for row, one in summary.instances.items()}
    total = sum(costs.values())
    if not summary.calls:
        return (
            "No instance recorded any popdist calls. Calls of gloo, NCCL and MPI are "
            "not recorded. If the program uses gloo, add --torch-backend popdist."
        )
    if not total:
        return "No instance waited for another."
    row = max(costs, key=lambda row: costs[row])
    share = 100 * costs[row] / total
    times = summary.instances[row].times_last
    return (
        f"The instances waited {in_time(total)} for each other in total; "
        f"{share:.0f} % of that was for {name_of(summary, row)}, which was the "
        f"last to begin {times} of {len(_counting(summary.together))} calls."
    )
