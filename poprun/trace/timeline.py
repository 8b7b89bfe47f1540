"""The events of a timeline, in Chrome's trace format: records -> events. Pure.

Times come in ns by CLOCK_MONOTONIC of the host that they are of, and go in microseconds
since the timeline's begin, by poprun's clock. Each process is a row of its own, and in
it each group and each thread with spans a line.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from popdist.call_records import DONE, IN_PROGRESS
from poprun.trace.clocks import Clock
from poprun.trace.record_files import Call, ProcessRecords, RecordedGroup

# The row of poprun, and its lines.
LAUNCHER = 0
PHASES, MPIRUN = 0, 1
# The lines of an instance: its life; from here on those of groups, those of threads
# with spans, and those of threads as torch.profiler has seen them.
LIFE, GROUPS, THREADS, PROFILES = 0, 1, 1000, 2000
# Rows of further processes of an instance are so far apart.
FURTHER_PROCESS = 100000
# Of a call in which an instance has waited for less, no arrow says for whom.
ARROW_NS = 100_000
CALL, WAIT, SPAN, PHASE = "call", "wait", "span", "phase"
MESSAGE = "message"
# The argument of the note about calls for which a process had no room: how many.
UNRECORDED = "unrecorded"

Event = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A process of the job with its records, and its row in the timeline."""

    records: ProcessRecords
    host: str
    clock: Clock
    row: int
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceLife:
    """The life of the program of an instance, by poprun's clock."""

    rank: int
    pid: int
    host: str
    attempt: int
    began_ns: int
    ended_ns: int
    end: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPhase:
    """A phase of the launcher."""

    name: str
    began_ns: int
    ended_ns: int


def row_of(rank: int, further: int = 0) -> int:
    """Return the row of an instance's process; further ones of it count from 1."""
    return rank + 1 + FURTHER_PROCESS * further


def timeline(
    begin_ns: int,
    phases: Sequence[LaunchPhase],
    mpirun: Sequence[LaunchPhase],
    lives: Sequence[InstanceLife],
    processes: Sequence[Traced],
) -> Iterator[Event]:
    """Yield the events of a job, in no order.

    Args:
        begin_ns: What counts as 0, by poprun's clock.
    """
    yield from _name_row(LAUNCHER, "poprun", -1)
    for line, name, slices in ((PHASES, "phases", phases), (MPIRUN, "mpirun", mpirun)):
        yield _name_line(LAUNCHER, line, name)
        for one in slices:
            begins, ends = one.began_ns - begin_ns, one.ended_ns - begin_ns
            yield _slice(LAUNCHER, line, one.name, PHASE, begins, ends)
    yield from _lives(begin_ns, lives)
    for process in processes:
        yield from _process(begin_ns, process)
    arrows = count(1)
    yield from _together(begin_ns, processes, arrows)
    yield from _messages(begin_ns, processes, arrows)


def _lives(begin_ns: int, lives: Sequence[InstanceLife]) -> Iterator[Event]:
    for life in lives:
        row = row_of(life.rank)
        yield from _name_row(row, _title(life.rank, life.host, life.pid), life.rank)
        yield _name_line(row, LIFE, "life")
        attempt = f", attempt {life.attempt}" if life.attempt else ""
        yield _slice(
            row,
            LIFE,
            f"instance {life.rank}{attempt}",
            "life",
            life.began_ns - begin_ns,
            life.ended_ns - begin_ns,
            {"end": life.end, "pid": life.pid, "host": life.host},
        )


def _title(rank: int, host: str, pid: int) -> str:
    return f"instance {rank} (PID {pid} on {host})"


def _process(begin_ns: int, traced: Traced) -> Iterator[Event]:
    """Yield the calls and spans of a process."""
    own = traced.records
    yield from _name_row(traced.row, _title(own.rank, traced.host, own.pid), own.rank)
    for number, group in own.groups.items():
        name = f"calls of {group.purpose or 'a group'} {_ranges(group.members)}"
        yield _name_line(traced.row, GROUPS + number, name)
    threads: dict[int, int] = {}
    for span in own.spans:
        line = threads.setdefault(span.thread, THREADS + len(threads))
        began, ended = _times(traced, begin_ns, span.began_ns, span.ended_ns)
        args = {} if span.ended_ns else {"unfinished": True}
        yield _slice(traced.row, line, span.name, SPAN, began, ended, args)
    for thread, line in threads.items():
        yield _name_line(traced.row, line, f"spans of thread {thread}")
    yield from _profiled(begin_ns, traced)
    if own.lost:
        note = f"{own.lost} later calls are not recorded: there was no room"
        last = max((call.ended_ns for call in own.calls), default=begin_ns)
        at = _at(traced.row, LIFE, traced.clock.on_poprun(last) - begin_ns)
        yield {"ph": "i", "s": "p", "name": note, "args": {UNRECORDED: own.lost}, **at}


def _profiled(begin_ns: int, traced: Traced) -> Iterator[Event]:
    threads: dict[str, int] = {}
    for one in traced.records.profiled:
        line = threads.setdefault(one.thread, PROFILES + len(threads))
        began, ended = _times(traced, begin_ns, one.began_ns, one.ended_ns)
        yield _slice(traced.row, line, one.name, f"torch {one.category}", began, ended)
    for thread, line in threads.items():
        yield _name_line(traced.row, line, f"torch.profiler: thread {thread}")


def _ranges(members: Sequence[int]) -> str:
    if len(members) > 8:
        return f"of {len(members)} instances"
    return f"of {', '.join(map(str, members))}"


def _times(
    traced: Traced, begin_ns: int, began_ns: int, ended_ns: int
) -> tuple[int, int]:
    """Return times of a process on the timeline; an end that is not known is 1 us."""
    clock = traced.clock
    ended_ns = ended_ns or began_ns + 1000
    return clock.on_poprun(began_ns) - begin_ns, clock.on_poprun(ended_ns) - begin_ns


def _together(
    begin_ns: int, processes: Sequence[Traced], arrows: Iterator[int]
) -> Iterator[Event]:
    """Yield all calls, with which belong together and who was waited for.

    Args:
        arrows: The numbers of arrows.
    """
    for name, group, parts in _calls(begin_ns, processes):
        _, last, last_began, _ = max(parts, key=lambda part: part[2])
        is_complete = 1 < len(parts) == len(group.members)
        waited_for = last.records.rank if is_complete else -1
        for part in parts:
            yield _call_event(part, name, group, waited_for)
            call, traced, began, ended = part
            if traced is last or not is_complete or call.waited_ns < ARROW_NS:
                continue
            until = min(max(last_began, began), ended)
            line = GROUPS + call.group
            title = f"waits for instance {waited_for}"
            yield _slice(traced.row, line, title, WAIT, began, until)
            yield from _arrow(next(arrows), part, last, last_began)


def _messages(
    begin_ns: int, processes: Sequence[Traced], arrows: Iterator[int]
) -> Iterator[Event]:
    """Yield an arrow from each send to its recv: they come in the same order."""
    # By group, sender and receiver: the sends and the recvs.
    messages: dict[Any, tuple[list[Event], list[Event]]] = {}
    for traced in processes:
        own = traced.records
        for call in own.calls:
            group = own.groups.get(call.group)
            if call.operation not in ("send", "recv") or group is None:
                continue
            if not 0 <= call.root < len(group.members):
                continue
            is_sent = call.operation == "send"
            ends = [own.rank, group.members[call.root]]
            sender, receiver = ends if is_sent else reversed(ends)
            of_group = traced.attempt, group.identity, group.members
            key = *of_group, sender, receiver
            began, ended = _times(traced, begin_ns, call.began_ns, call.ended_ns)
            at = _at(traced.row, GROUPS + call.group, began if is_sent else ended - 1)
            messages.setdefault(key, ([], []))[not is_sent].append(at)
    for sends, receives in messages.values():
        for sent, received in zip(sends, receives, strict=False):
            common = {"name": "message", "cat": MESSAGE, "id": next(arrows)}
            yield {"ph": "s", **common, **sent}
            # It is not before the send, whatever the clocks of two hosts say.
            end = max(sent["ts"], received["ts"])
            yield {"ph": "f", "bp": "e", **common, **received, "ts": end}


# A call, the process that made it, and when it began and ended on the timeline.
_Part = tuple[Call, Traced, int, int]


def _calls(
    begin_ns: int, processes: Sequence[Traced]
) -> Iterable[tuple[str, RecordedGroup, list[_Part]]]:
    """Return the parts of each call by name and group; of a message there is one."""
    calls: dict[Any, tuple[str, RecordedGroup, list[_Part]]] = {}
    names: dict[Any, str] = {}
    for traced in processes:
        for call in traced.records.calls:
            group = traced.records.groups.get(call.group)
            if group is None:
                continue
            identity = traced.attempt, group.identity, group.members
            name = names.setdefault(identity, f"group {len(names)}")
            # Messages are not numbered: each is a call of its own.
            key = (name, call.number) if call.number else len(calls)
            title = f"{name}, call {call.number}" if call.number else name
            times = _times(traced, begin_ns, call.began_ns, call.ended_ns)
            _, _, parts = calls.setdefault(key, (title, group, []))
            parts.append((call, traced, *times))
    return calls.values()


def _call_event(part: _Part, name: str, group: RecordedGroup, waited_for: int) -> Event:
    call, traced, began, ended = part
    moved_ns = max(call.ended_ns - call.began_ns - call.waited_ns, 0)
    args: Event = {
        "call": name,
        "members": len(group.members),
        "bytes": call.nbytes,
        "waited_us": call.waited_ns / 1000,
        "moved_us": moved_ns / 1000 if call.ended_ns else 0.0,
    }
    for key, text in (
        ("dtype", call.dtype),
        ("reduction", call.reduction),
        ("algorithm", call.algorithm),
        ("name", traced.records.names.get(call.name, "")),
    ):
        if text:
            args[key] = text
    if call.root >= 0 and call.root < len(group.members) and call.operation in _ROOTED:
        args[_ROOTED[call.operation]] = group.members[call.root]
    if waited_for >= 0:
        args["last_to_begin"] = waited_for
    if call.status != DONE:
        args["end"] = "unfinished" if call.status == IN_PROGRESS else "failed"
    line = GROUPS + call.group
    return _slice(traced.row, line, call.operation, CALL, began, ended, args)


# What the member called root is in the calls that have one.
_ROOTED = {
    "reduce": "root",
    "broadcast": "root",
    "gather": "root",
    "scatter": "root",
    "send": "to",
    "recv": "from",
}


def _arrow(number: int, part: _Part, last: Traced, last_began: int) -> Iterator[Event]:
    """Yield an arrow from the call of the last member to that of one that waited."""
    call, traced, _, ended = part
    common = {"name": "waits", "cat": WAIT, "id": number}
    line = GROUPS + next(
        n
        for n, g in last.records.groups.items()
        if g.identity == traced.records.groups[call.group].identity
    )
    yield {"ph": "s", **common, **_at(last.row, line, last_began)}
    end = max(last_began, ended - 1)
    yield {"ph": "f", "bp": "e", **common, **_at(traced.row, GROUPS + call.group, end)}


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
    return {"pid": row, "tid": line, "ts": ns / 1000}


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
    if args:
        event["args"] = args
    return event
