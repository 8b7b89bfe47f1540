"""The events of a timeline, in Chrome's trace format: records -> events. Pure.

Each process is a row, and in it each group and each thread with spans is a line. Until
the events are complete, all times are in ns on poprun's clock.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, NamedTuple

from popdist.call_records import DONE, IN_PROGRESS
from poprun.trace.record_files import Call, ProcessRecords, RecordedGroup

# The row of poprun, and its lines.
LAUNCHER = 0
PHASES, MPIRUN = 0, 1
# The lines of an instance: its life; then the first line for groups, for threads with
# spans, and for threads that torch.profiler has seen.
LIFE, GROUPS, THREADS, PROFILES = 0, 1, 1000, 2000
# Rows of further processes of an instance are so far apart.
FURTHER_PROCESS = 100000
# Shorter waits have no arrow.
ARROW_NS = 100_000
CALL, WAIT, SPAN, PHASE = "call", "wait", "span", "phase"
MESSAGE = "message"
# The argument of the note about calls for which a process had no room: how many.
UNRECORDED = "unrecorded"
# The name of the argument for the member `root` of a call.
_ROOTED = {
    "reduce": "root",
    "broadcast": "root",
    "gather": "root",
    "scatter": "root",
    "send": "to",
    "recv": "from",
}

Event = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceLife:
    """The life of the program of an instance, on poprun's clock."""

    pid: int
    host: str
    began_ns: int
    ended_ns: int = 0
    end: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPhase:
    """A phase of the launcher."""

    name: str
    began_ns: int
    ended_ns: int = 0


class Part(NamedTuple):
    """The call of one member, with its times on poprun's clock.

    A tuple: a process has up to 131071 calls.
    """

    call: Call
    process: ProcessRecords
    began: int
    ended: int

    @property
    def line(self) -> int:
        return GROUPS + self.call.group


# Each with its attempt and rank.
Lives = Sequence[tuple[int, int, InstanceLife]]
# The title, the group and the parts of a call.
CallParts = tuple[str, RecordedGroup, list[Part]]


def row_of(rank: int, further: int = 0) -> int:
    """Return the row of an instance's process.

    Args:
        further: 0 for the program, 1 and more for further processes with records.
    """
    return rank + 1 + FURTHER_PROCESS * further


def timeline(
    begin_ns: int,
    end_ns: int,
    phases: Sequence[LaunchPhase],
    mpirun: Sequence[LaunchPhase],
    lives: Lives,
    processes: Sequence[ProcessRecords],
) -> Iterator[Event]:
    """Yield the events of a job, in no order.

    Args:
        begin_ns: The time on poprun's clock that counts as 0.
        end_ns: When phases and lives end that have no end.
    """
    arrows, calls = count(1), _calls(processes)
    for event in chain(
        _launcher(phases, mpirun, end_ns),
        _lives(lives, end_ns),
        *(_process(process, begin_ns) for process in processes),
        _calls_and_waits(calls, arrows),
        _messages(calls, arrows),
    ):
        if "ts" in event:
            event["ts"] = (event["ts"] - begin_ns) / 1000
        yield event


def _launcher(
    phases: Sequence[LaunchPhase], mpirun: Sequence[LaunchPhase], end_ns: int
) -> Iterator[Event]:
    yield from _name_row(LAUNCHER, "poprun", -1)
    for line, name, slices in ((PHASES, "phases", phases), (MPIRUN, "mpirun", mpirun)):
        yield _name_line(LAUNCHER, line, name)
        for one in slices:
            times = one.began_ns, one.ended_ns or end_ns
            yield _slice(LAUNCHER, line, one.name, PHASE, *times)


def _lives(lives: Lives, end_ns: int) -> Iterator[Event]:
    for attempt, rank, life in lives:
        row = row_of(rank)
        yield from _name_row(row, _title(rank, life.host, life.pid), rank)
        yield _name_line(row, LIFE, "life")
        name = f"instance {rank}" + (f", attempt {attempt}" if attempt else "")
        args = {"end": life.end, "pid": life.pid, "host": life.host}
        times = life.began_ns, life.ended_ns or end_ns
        yield _slice(row, LIFE, name, "life", *times, args)


def _title(rank: int, host: str, pid: int) -> str:
    return f"instance {rank} (PID {pid} on {host})"


def _process(own: ProcessRecords, begin_ns: int) -> Iterator[Event]:
    """Yield the spans of a process, and the names of its lines."""
    row = own.row
    yield from _name_row(row, _title(own.rank, own.host, own.pid), own.rank)
    for number, group in own.groups.items():
        name = f"calls of {group.purpose or 'a group'} {_ranges(group.members)}"
        yield _name_line(row, GROUPS + number, name)
    for first, title, spans in (
        (THREADS, "spans of thread", own.spans),
        (PROFILES, "torch.profiler: thread", own.profiled),
    ):
        lines: dict[int | str, int] = {}
        for span in spans:
            line = lines.setdefault(span.thread, first + len(lines))
            category = f"torch {span.category}" if spans is own.profiled else SPAN
            args = {} if span.ended_ns else {"unfinished": True}
            times = own.times(span.began_ns, span.ended_ns)
            yield _slice(row, line, span.name, category, *times, args)
        for thread, line in lines.items():
            yield _name_line(row, line, f"{title} {thread}")
    if own.lost:
        note = f"{own.lost} later calls are not recorded: there was no room"
        last = max((call.ended_ns for call in own.calls), default=begin_ns)
        at = _at(row, LIFE, own.clock.on_poprun(last))
        yield {"ph": "i", "s": "p", "name": note, "args": {UNRECORDED: own.lost}, **at}


def _ranges(members: Sequence[int]) -> str:
    if len(members) > 8:
        return f"of {len(members)} instances"
    return f"of {', '.join(map(str, members))}"


def _calls_and_waits(
    calls: Iterable[CallParts], arrows: Iterator[int]
) -> Iterator[Event]:
    """Yield all calls, and the waits for the last member of each.

    Args:
        arrows: The numbers of arrows.
    """
    for name, group, parts in calls:
        last = max(parts, key=lambda part: part.began)
        is_complete = 1 < len(parts) == len(group.members)
        waited_for = last.process.rank if is_complete else -1
        for part in parts:
            yield _call_event(part, name, group, waited_for)
            if part is last or not is_complete or part.call.waited_ns < ARROW_NS:
                continue
            row = part.process.row
            until = min(max(last.began, part.began), part.ended)
            title = f"waits for instance {waited_for}"
            yield _slice(row, part.line, title, WAIT, part.began, until)
            begin = _at(last.process.row, last.line, last.began)
            end = _at(row, part.line, part.ended - 1)
            yield from _arrow(next(arrows), "waits", WAIT, begin, end)


def _messages(calls: Iterable[CallParts], arrows: Iterator[int]) -> Iterator[Event]:
    """Yield an arrow from each send to its recv: both come in the same order."""
    # By group, sender and receiver: the sends and the recvs.
    messages: dict[Any, tuple[list[Event], list[Event]]] = {}
    for name, group, [part, *_] in calls:
        call, row = part.call, part.process.row
        is_sent = call.operation == "send"
        if not (is_sent or call.operation == "recv"):
            continue
        if 0 <= call.root < len(group.members):
            ends = part.process.rank, group.members[call.root]
            key = name, ends if is_sent else ends[::-1]
            at = _at(row, part.line, part.began if is_sent else part.ended - 1)
            messages.setdefault(key, ([], []))[not is_sent].append(at)
    for sends, receives in messages.values():
        for sent, received in zip(sends, receives, strict=False):
            yield from _arrow(next(arrows), "message", MESSAGE, sent, received)


def _calls(processes: Sequence[ProcessRecords]) -> Collection[CallParts]:
    """Return the title, the group and the parts of each call."""
    calls: dict[Any, CallParts] = {}
    names: dict[Any, str] = {}
    for process in processes:
        for call in process.calls:
            group = process.groups.get(call.group)
            if group is None:
                continue
            identity = process.attempt, group.identity, group.members
            name = names.setdefault(identity, f"group {len(names)}")
            # Messages are not numbered: each is a call with one part.
            key = (name, call.number) if call.number else len(calls)
            title = f"{name}, call {call.number}" if call.number else name
            times = process.times(call.began_ns, call.ended_ns)
            part = Part(call, process, *times)
            calls.setdefault(key, (title, group, []))[2].append(part)
    return calls.values()


def _call_event(part: Part, name: str, group: RecordedGroup, waited_for: int) -> Event:
    call, process = part.call, part.process
    moved_ns = max(call.ended_ns - call.began_ns - call.waited_ns, 0)
    args: Event = {
        "call": name,
        "members": len(group.members),
        "bytes": call.nbytes,
        "waited_us": call.waited_ns / 1000,
        "moved_us": moved_ns / 1000 if call.ended_ns else 0.0,
    }
    texts = {
        "dtype": call.dtype,
        "reduction": call.reduction,
        "algorithm": call.algorithm,
        "name": process.names.get(call.name, ""),
    }
    args |= {key: text for key, text in texts.items() if text}
    if 0 <= call.root < len(group.members) and call.operation in _ROOTED:
        args[_ROOTED[call.operation]] = group.members[call.root]
    if waited_for >= 0:
        args["last_to_begin"] = waited_for
    if call.status != DONE:
        args["end"] = "unfinished" if call.status == IN_PROGRESS else "failed"
    times = part.began, part.ended
    return _slice(process.row, part.line, call.operation, CALL, *times, args)


def _arrow(
    number: int, name: str, category: str, begin: Event, end: Event
) -> Iterator[Event]:
    common = {"name": name, "cat": category, "id": number}
    yield {"ph": "s", **common, **begin}
    # It does not point backwards, whatever the clocks of two hosts say.
    ns = max(begin["ts"], end["ts"])
    yield {"ph": "f", "bp": "e", **common, **end, "ts": ns}


def _name_row(row: int, title: str, order: int) -> Iterator[Event]:
    for kind, args in (
        ("process_name", {"name": title}),
        ("process_sort_index", {"sort_index": order}),
    ):
        yield {"ph": "M", "name": kind, "pid": row, "tid": 0, "args": args}


def _name_line(row: int, line: int, title: str) -> Event:
    args = {"name": title}
    return {"ph": "M", "name": "thread_name", "pid": row, "tid": line, "args": args}


def _at(row: int, line: int, ns: int) -> Event:
    return {"pid": row, "tid": line, "ts": ns}


def _slice(
    row: int,
    line: int,
    name: str,
    category: str,
    began_ns: int,
    ended_ns: int,
    args: Event | None = None,
) -> Event:
    event: Event = {"ph": "X", "name": name, "cat": category}
    event |= _at(row, line, began_ns)
    event["dur"] = max(ended_ns - began_ns, 0) / 1000
    return event | ({"args": args} if args else {})
