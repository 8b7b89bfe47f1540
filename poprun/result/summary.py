"""How each instance of an attempt ended, and the table of --summary. Pure."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from poprun.helpers.processes import exit_code, signal_name
from poprun.options.programs import name_of
from poprun.output.terminal import clock
from poprun.plan.values import Assignment
from poprun.result.outcome import Outcome
from poprun.texts.tables import aligned
from poprun.wire.events import Event, Exited, FailedInFinalize, Refused, Started
from poprun.words import counted, format_ranges, size

SUCCEEDED, FAILED, STOPPED = "succeeded", "failed", "stopped"
LOST, NOT_STARTED = "lost", "not started"
STATES = (SUCCEEDED, FAILED, STOPPED, LOST, NOT_STARTED)
INDENT = "    "
# What a narrow terminal leaves out, the first one first.
LEAST_IMPORTANT = ("CPU", "peak memory", "wall")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceEnd:
    """How one instance ended, as far as it is known."""

    rank: int
    host: str
    # One of STATES. One that poprun or mpirun has stopped has not failed.
    state: str
    # The wait status; None if it is not known.
    status: int | None = None
    wall_s: float | None = None
    user_s: float | None = None
    system_s: float | None = None
    peak_kib: int | None = None
    # For a failed instance: its last traceback, and the end of its stderr.
    traceback: str = ""
    stderr_tail: str = ""
    # The argv of its program.
    program: Sequence[str] = ()

    @property
    def exit_code(self) -> int | None:
        """The code that a shell would show."""
        return None if self.status is None else exit_code(self.status)

    @property
    def killed_by(self) -> str | None:
        """The name of the signal that killed it, if one did."""
        if self.status is None or not os.WIFSIGNALED(self.status):
            return None
        return signal_name(os.WTERMSIG(self.status))

    @property
    def cpu_s(self) -> float | None:
        if self.user_s is None or self.system_s is None:
            return None
        return self.user_s + self.system_s


def instance_ends(
    events: Sequence[Event],
    started_ns: Mapping[int, int],
    outcome: Outcome,
    assignments: Sequence[Assignment],
) -> list[InstanceEnd]:
    """Return how each instance ended, in rank order.

    Args:
        started_ns: When each that has started did, on the clock of the events.
    """
    exits = {e.rank: e for e in events if isinstance(e, Exited)}
    finalizing = {e.rank: e.status for e in events if isinstance(e, FailedInFinalize)}
    started = {e.rank for e in events if isinstance(e, Started)}
    refused = {e.rank for e in events if isinstance(e, Refused)}
    failed = {f.rank: f.status for f in (outcome.first, *outcome.also) if f}
    ends = []
    for rank, assignment in enumerate(assignments):
        event = exits.get(rank)
        status = failed.get(rank, finalizing.get(rank))
        if status is not None:
            state = FAILED
        elif event is not None:
            status = event.status
            state = SUCCEEDED if not status and event.by_itself else STOPPED
        else:
            state = LOST if rank in started - refused else NOT_STARTED
        host, program = assignment.host.name, assignment.program
        end = InstanceEnd(
            rank=rank, host=host, state=state, status=status, program=program
        )
        ends.append(end if event is None else _with_usage(end, event, started_ns))
    return ends


def _with_usage(
    end: InstanceEnd, event: Exited, started_ns: Mapping[int, int]
) -> InstanceEnd:
    began = started_ns.get(end.rank, event.at_ns)
    return replace(
        end,
        wall_s=max(0, event.at_ns - began) / 1e9,
        user_s=event.user_s,
        system_s=event.system_s,
        peak_kib=event.peak_kib,
    )


def in_a_line(ends: Sequence[InstanceEnd]) -> str:
    """Return a sentence: how many instances ended how, and what they used."""
    parts = []
    for state in STATES:
        ranks = [end.rank for end in ends if end.state == state]
        if ranks:
            parts.append(f"{len(ranks)} {state} ({format_ranges(ranks)})")
    usage = []
    walls = [end.wall_s for end in ends if end.wall_s is not None]
    if walls:
        usage.append(f"{_seconds(max(walls))} at most")
    peaks = [(end.peak_kib, end.rank) for end in ends if end.peak_kib]
    if peaks:
        peak, rank = max(peaks, key=lambda pair: (pair[0], -pair[1]))
        usage.append(f"peak memory {size(peak * 1024)} (instance {rank})")
    sentence = f"{counted(len(ends), 'instance')}: {', '.join(parts)}"
    return "; ".join([sentence, *usage]) + "."


def table(ends: Sequence[InstanceEnd], columns: int | None = None) -> str:
    """Return a table with a line for each instance.

    Args:
        columns: The width of the terminal that shows it; None where there is none. A
            narrow one gets fewer columns.
    """
    several = len({tuple(end.program) for end in ends}) > 1
    cells = {
        "instance": [str(end.rank) for end in ends],
        **({"program": [name_of(end.program) for end in ends]} if several else {}),
        "host": [end.host for end in ends],
        "exit": [_exit(end) for end in ends],
        "wall": [_seconds(end.wall_s) for end in ends],
        "CPU": [_seconds(end.cpu_s) for end in ends],
        "peak memory": [_memory(end) for end in ends],
    }
    lines = _lines(cells)
    for title in LEAST_IMPORTANT:
        if columns is None or max(map(len, lines)) <= columns:
            break
        del cells[title]
        lines = _lines(cells)
    return "\n".join(["how the instances ended:", *lines])


def _lines(cells: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the lines of a table, from its columns by their titles."""
    rows = [tuple(cells), *zip(*cells.values(), strict=True)]
    return [INDENT + line for line in aligned(rows)]


def _memory(end: InstanceEnd) -> str:
    return "-" if end.peak_kib is None else size(end.peak_kib * 1024)


def _exit(end: InstanceEnd) -> str:
    if end.state in (LOST, NOT_STARTED):
        return end.state
    how = end.killed_by or str(end.exit_code)
    return f"{how}, stopped" if end.state == STOPPED else how


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds < 100 else clock(seconds)
