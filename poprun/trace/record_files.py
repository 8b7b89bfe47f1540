"""The records that processes of a job leave in a folder: bytes -> values. Pure.

The bytes may end anywhere, because a process may have been killed while it wrote. The
program may have overwritten them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from popdist import call_records as records
from poprun.host.record_pieces import used_bytes
from poprun.trace.clocks import Clock


class Call(NamedTuple):
    """A call of a process; times are in ns on CLOCK_MONOTONIC of its host.

    ended_ns is 0 for a call in which the process has ended, and status is one of
    popdist.engine.spec.operations.Status. A tuple: a process has up to 131071 of them,
    and as dataclasses they would take 2.5 times the memory and the time.
    """

    group: int
    number: int
    operation: str
    began_ns: int
    ended_ns: int
    waited_ns: int
    nbytes: int
    dtype: str
    reduction: str
    algorithm: str
    root: int
    name: int
    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span of the program, or an event of torch.profiler with its category.

    thread: The number of the thread, or its name in torch.profiler.
    ended_ns: 0 if the process has ended in the span.
    """

    name: str
    thread: int | str
    began_ns: int
    ended_ns: int
    category: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedGroup:
    """A group as one member knows it; all members know the same identity."""

    identity: str
    purpose: str
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecords:
    """The records of one process.

    lost: The number of later calls for which its file had no room.
    host, clock, attempt, row: Where it ran, and its row in the timeline.
    """

    rank: int
    pid: int
    groups: Mapping[int, RecordedGroup]
    calls: Sequence[Call]
    spans: Sequence[Span]
    names: Mapping[int, str]
    lost: int
    profiled: Sequence[Span] = ()
    host: str = ""
    clock: Clock = field(default_factory=Clock)
    attempt: int = 0
    row: int = 0

    def times(self, began_ns: int, ended_ns: int) -> tuple[int, int]:
        """Return two times on poprun's clock; an unknown end is 1 us later."""
        ended_ns = ended_ns or began_ns + 1000
        return self.clock.on_poprun(began_ns), self.clock.on_poprun(ended_ns)


def lost_calls(header: bytes) -> int:
    """Return for how many calls a file had no room."""
    if not used_bytes(header):
        return 0
    return int(records.HEADER.unpack_from(header)[4])


def read_process(
    calls: bytes, notes: bytes, profiles: Sequence[bytes] = ()
) -> ProcessRecords | None:
    """Return the records of a process; None if it has not begun to record.

    Notes that popdist has not written count as none.
    """
    try:
        return _read_process(calls, _notes(notes), profiles)
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


def _read_process(
    calls: bytes, by_kind: Mapping[str, Sequence[Any]], profiles: Sequence[bytes]
) -> ProcessRecords:
    process = by_kind[records.PROCESS][0]
    ends = {note["span"]: int(note["at"]) for note in by_kind.get(records.END, ())}
    # From times by CLOCK_REALTIME, which torch.profiler uses, to CLOCK_MONOTONIC.
    difference_ns = process["monotonic"] - process["realtime"]
    return ProcessRecords(
        rank=int(process["rank"]),
        pid=int(process["pid"]),
        groups={
            note["group"]: RecordedGroup(
                identity=str(note["id"]),
                purpose=note["purpose"],
                members=tuple(map(int, note["members"])),
            )
            for note in by_kind.get(records.GROUP, ())
        },
        calls=list(_calls(calls)),
        spans=[
            Span(
                name=note["name"],
                thread=note["thread"],
                began_ns=int(note["at"]),
                ended_ns=ends.get(note["span"], 0),
            )
            for note in by_kind.get(records.BEGIN, ())
        ],
        names={
            int(number): name
            for note in by_kind.get(records.NAMES, ())
            for number, name in note["names"].items()
        },
        lost=lost_calls(calls),
        profiled=[
            span for profile in profiles for span in _profiled(profile, difference_ns)
        ],
    )


def _profiled(profile: bytes, difference_ns: int) -> Iterator[Span]:
    """Yield the events of torch.profiler."""
    try:
        document = json.loads(profile)
        base_ns = int(document.get("baseTimeNanoseconds", 0)) + difference_ns
        for event in document["traceEvents"]:
            if event.get("ph") != "X":
                continue
            began_ns = base_ns + int(1000 * event["ts"])
            yield Span(
                name=str(event["name"]),
                thread=str(event["tid"]),
                began_ns=began_ns,
                ended_ns=began_ns + int(1000 * event["dur"]),
                category=str(event.get("cat", "")),
            )
    except (ValueError, KeyError, TypeError, AttributeError):
        return  # the program has written something else there


def _notes(data: bytes) -> Mapping[str, Sequence[Any]]:
    by_kind: dict[str, list[Any]] = {}
    for line in data.splitlines():
        try:
            note = json.loads(line)
        except ValueError:
            continue  # the last one, on a disk that is full
        if isinstance(note, dict):
            by_kind.setdefault(note["kind"], []).append(note)
    return by_kind


def _calls(data: bytes) -> Iterator[Call]:
    size = records.RECORD.size
    end = min(used_bytes(data), len(data) // size * size)
    for at in range(size, end, size):
        try:
            call = _call(records.RECORD.unpack_from(data, at))
        except IndexError:
            # No dtype, reduction or algorithm has such a number.
            continue
        if call is not None:
            yield call


def _call(record: tuple[int, ...]) -> Call | None:
    """Return the call of a record; None if its process was killed as it began it."""
    began, ended, waited, nbytes, number, name, group, root, *rest = record
    operation, dtype, reduction, algorithm, status, is_described, prelude_to = rest
    if not began or not is_described or operation >= len(records.OPERATIONS):
        return None
    title = records.OPERATIONS[operation]
    reduces = title in records.REDUCING
    if prelude_to:
        # The first step of a call of arrays that may differ; small ones need no other.
        title = f"{records.OPERATIONS[prelude_to]} (headers, small arrays)"
        if prelude_to == records.NEGOTIATION:
            title = records.OPERATIONS[prelude_to]
    is_message = operation in (records.SEND, records.RECEIVE)
    return Call(
        group=group,
        number=0 if is_message else number,
        operation=title,
        began_ns=began,
        ended_ns=ended,
        waited_ns=waited,
        nbytes=nbytes,
        dtype=records.DTYPES[dtype] if nbytes else "",
        reduction=records.REDUCTIONS[reduction] if reduces else "",
        algorithm=records.ALGORITHMS[algorithm] if reduces else "",
        root=root,
        name=name,
        status=status,
    )
