"""A job of three instances in which one is always late, as its processes record it."""

from popdist.call_records import DONE
from poprun.trace.clocks import Clock
from poprun.trace.record_files import Call, ProcessRecords, RecordedGroup, Span
from poprun.trace.timeline import (
    Event,
    InstanceLife,
    LaunchPhase,
    row_of,
    timeline,
)

MS = 1_000_000
BEGIN = 1000 * MS
GROUP = RecordedGroup(identity="5f-77", purpose="replicas", members=(0, 1, 2))
LATE = 2


def call(number: int, began: int, ended: int, waited: int, **others: object) -> Call:
    fields = {
        "group": 0,
        "number": number,
        "operation": "all_reduce",
        "began_ns": began,
        "ended_ns": ended,
        "waited_ns": waited,
        "nbytes": 4096,
        "dtype": "float32",
        "reduction": "sum",
        "algorithm": "direct",
        "root": -1,
        "name": 0,
        "status": DONE,
    }
    return Call(**{**fields, **others})


def calls_of(rank: int, number: int = 5) -> list[Call]:
    """Return calls 100 ms apart; instance 2 comes 20 ms after the others."""
    made = []
    for n in range(number):
        base = BEGIN + 100 * MS * (n + 1)
        began = base + (20 * MS if rank == LATE else rank * MS)
        ended = base + 21 * MS
        waited = 0 if rank == LATE else base + 20 * MS - began
        made.append(call(n + 1, began, ended, waited))
    return made


def process(rank: int, clock: Clock | None = None, **others: object) -> ProcessRecords:
    spans = [
        Span(
            name="step", thread=71, began_ns=BEGIN + 50 * MS, ended_ns=BEGIN + 150 * MS
        )
    ]
    fields = {
        "rank": rank,
        "pid": 100 + rank,
        "groups": {0: GROUP},
        "calls": calls_of(rank),
        "spans": spans,
        "names": {},
        "lost": 0,
    }
    fields |= {"host": "here", "clock": clock or Clock(), "row": row_of(rank)}
    return ProcessRecords(**{**fields, **others})


def events(processes: list[ProcessRecords] | None = None) -> list[Event]:
    begin = BEGIN + 10 * MS
    lives = [
        InstanceLife(
            pid=100 + r,
            host="here",
            began_ns=begin,
            ended_ns=BEGIN + 700 * MS,
            end="exit code 0",
        )
        for r in range(3)
    ]
    phases = [LaunchPhase(name="start", began_ns=BEGIN, ended_ns=BEGIN + 10 * MS)]
    mpirun = [LaunchPhase(name="mpirun", began_ns=BEGIN, ended_ns=BEGIN + 710 * MS)]
    shown = [process(rank) for rank in range(3)] if processes is None else processes
    of_ranks = [(0, rank, life) for rank, life in enumerate(lives)]
    return list(timeline(BEGIN, 0, phases, mpirun, of_ranks, shown))


def document(some: list[Event] | None = None) -> dict[str, object]:
    return {
        "otherData": {"poprun": "0.1.0"},
        "traceEvents": events() if some is None else some,
    }
