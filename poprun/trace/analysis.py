"""The waits in a job: the events of a timeline -> a summary. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from poprun.trace.timeline import CALL, LAUNCHER, PHASE, SPAN, UNRECORDED
from poprun.words import three_digits

# So many processes that had no room for all their calls are named.
MOST_GAPS = 4


class TraceError(ValueError):
    """A file is not a timeline of poprun."""


class Slice(NamedTuple):
    """A call, a span, a phase or a life; times in microseconds.

    args: The arguments of the event, which depend on its kind. A tuple: a process has
    up to 131071 calls.
    """

    name: str
    row: int
    began: float
    ended: float
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class JointCall:
    """A collective call, with the call of each member.

    parts: The call of each.
    last: The part that began last.
    """

    title: str
    parts: Sequence[Slice]
    last: Slice

    @property
    def waited(self) -> float:
        """How long all have waited, in total."""
        return float(sum(part.args["waited_us"] for part in self.parts))

    @property
    def is_complete(self) -> bool:
        return len(self.parts) == int(self.last.args["members"])

    @property
    def has_last(self) -> bool:
        """Whether it is known which of several members began last."""
        return self.is_complete and len(self.parts) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSummary:
    """The calls of one process; times in microseconds.

    times_last: In how many calls it was the last to begin.
    cost_to_others: How long the others waited in these calls, in total.
    """

    title: str
    calls: int
    nbytes: int
    waited: float
    moved: float
    times_last: int
    cost_to_others: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """The contents of a timeline.

    rows: The titles of the rows.
    waits: How long one row waited for another, by both.
    unrecorded: By row of a process, for how many later calls there was no room.
    is_complete: Whether poprun has written it at the end of the job.
    """

    rows: Mapping[int, str]
    phases: Sequence[Slice]
    lives: Sequence[Slice]
    calls: Sequence[Slice]
    spans: Sequence[Slice]
    joint_calls: Sequence[JointCall]
    instances: Mapping[int, InstanceSummary]
    waits: Mapping[tuple[int, int], float]
    unrecorded: Mapping[int, int]
    end: float
    is_complete: bool


def analyse(document: Any) -> TraceSummary:
    """Return the summary of a timeline.

    Raises:
        TraceError: It is not a timeline of poprun.
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
    slices: defaultdict[str, list[Slice]] = defaultdict(list)
    unrecorded: dict[int, int] = {}
    end = 0.0
    for event in events:
        if event["ph"] == "M" and event["name"] == "process_name":
            rows[event["pid"]] = event["args"]["name"]
        elif event["ph"] == "X":
            began, ended = event["ts"], event["ts"] + event["dur"]
            args = event.get("args", {})
            one = Slice(event["name"], event["pid"], began, ended, args)
            slices[event.get("cat", "")].append(one)
            end = max(end, ended)
        elif event["ph"] == "i" and UNRECORDED in event.get("args", {}):
            unrecorded[event["pid"]] = int(event["args"][UNRECORDED])
    joint_calls = _joint_calls(slices[CALL])
    waits: defaultdict[tuple[int, int], float] = defaultdict(float)
    for call in joint_calls:
        if call.has_last:
            for part in call.parts:
                if part is not call.last:
                    waits[part.row, call.last.row] += part.args["waited_us"]
    return TraceSummary(
        rows=rows,
        phases=slices[PHASE],
        lives=slices["life"],
        calls=slices[CALL],
        spans=slices[SPAN],
        joint_calls=joint_calls,
        instances=_instances(rows, slices[CALL], joint_calls, waits),
        waits=waits,
        unrecorded=unrecorded,
        end=end,
        is_complete=is_complete,
    )


def _joint_calls(calls: Sequence[Slice]) -> list[JointCall]:
    by_title: defaultdict[str, list[Slice]] = defaultdict(list)
    for call in calls:
        if ", call " in call.args["call"]:
            by_title[call.args["call"]].append(call)
    joint_calls = []
    for title, parts in by_title.items():
        last = max(parts, key=lambda part: part.began)
        joint_calls.append(JointCall(title=title, parts=parts, last=last))
    return joint_calls


def _instances(
    rows: Mapping[int, str],
    calls: Sequence[Slice],
    joint_calls: Sequence[JointCall],
    waits: Mapping[tuple[int, int], float],
) -> dict[int, InstanceSummary]:
    own: defaultdict[int, list[Slice]] = defaultdict(list)
    for call in calls:
        own[call.row].append(call)
    times_last = Counter(one.last.row for one in joint_calls if one.has_last)
    costs: defaultdict[int, float] = defaultdict(float)
    for (_, last), us in waits.items():
        costs[last] += us
    return {
        row: InstanceSummary(
            title=title,
            calls=len(own[row]),
            nbytes=sum(call.args["bytes"] for call in own[row]),
            waited=sum(call.args["waited_us"] for call in own[row]),
            moved=sum(call.args["moved_us"] for call in own[row]),
            times_last=times_last[row],
            cost_to_others=costs[row],
        )
        for row, title in sorted(rows.items())
        if row != LAUNCHER
    }


def slowest(joint_calls: Sequence[JointCall], number: int) -> list[JointCall]:
    """Return the calls in which the instances have waited for the longest time."""
    # In a call with one member no instance waits for another.
    several = [one for one in joint_calls if len(one.parts) > 1 or not one.is_complete]
    return sorted(several, key=lambda one: -one.waited)[:number]


def duration_text(us: float) -> str:
    """Write a time: 12.3 us, 4.56 ms, 1.23 s."""
    for unit, length in (("s", 1e6), ("ms", 1e3)):
        if us >= length:
            return f"{three_digits(us / length)} {unit}"
    return f"{three_digits(us)} us"


def row_name(summary: TraceSummary, row: int) -> str:
    """Return the name of a row without its process: "instance 3"."""
    return summary.rows.get(row, f"row {row}").partition(" (")[0]


def missing_calls(summary: TraceSummary) -> str:
    """Return a sentence about calls for which there was no room; "" for none."""
    most = sorted(summary.unrecorded.items(), key=lambda item: -item[1])
    lacks = [f"the last {number} of {row_name(summary, row)}" for row, number in most]
    if not lacks:
        return ""
    more = f", and those of {len(lacks) - MOST_GAPS} more processes"
    return (
        "Some calls are missing from the trace, because there was no room for them: "
        f"{', '.join(lacks[:MOST_GAPS])}{more if len(lacks) > MOST_GAPS else ''}."
    )


def conclusion(summary: TraceSummary) -> str:
    """Return a sentence about the instance for which the others have waited longest."""
    if not summary.is_complete:
        return (
            "The trace is incomplete and contains no calls: poprun writes them when "
            "the job ends. The job is still running, poprun was killed, or the file "
            "could not be written."
        )
    if not summary.calls:
        return (
            "No instance recorded any popdist calls. Calls of gloo, NCCL and MPI are "
            "not recorded. If the program uses gloo, add --torch-backend popdist."
        )
    costs = {row: one.cost_to_others for row, one in summary.instances.items()}
    total = sum(costs.values())
    if not total:
        return "No instance waited for another."
    row = max(costs, key=lambda row: costs[row])
    calls = sum(one.has_last for one in summary.joint_calls)
    return (
        f"The instances waited {duration_text(total)} for each other in total; "
        f"{100 * costs[row] / total:.0f} % of that was for {row_name(summary, row)}, "
        f"which was the last to begin {summary.instances[row].times_last} of {calls} "
        "calls."
    )
