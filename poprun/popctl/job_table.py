"""A job and its instances as lines of text: what `popctl top` shows. Pure."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from poprun.log import printable
from poprun.popctl.tables import clock, memory
from poprun.words import counted

View = Mapping[str, Any]
GAP = "  "
# The CPU time of all instances is not shown for less time than this, as the kernel
# counts it in hundredths of a second.
LEAST_TIME_S = 0.2


class Column(NamedTuple):
    """One column: its head, and the cell of an instance, whose CPU use is given."""

    head: str
    cell: Callable[[View, float | None], str]
    is_number: bool = True
    # Whether any instance has something to show in it; None for always.
    is_used: Callable[[View], bool] | None = None


def _state(instance: View, cpu: float | None) -> str:
    if instance["phase"] == "ended":
        code = instance["exit_code"]
        return "lost" if code is None else f"exit {code}"
    if instance["phase"] == "waiting":
        return "waiting"
    return "" if cpu is None else f"{cpu:.0f} %"


def _memory(instance: View, cpu: float | None) -> str:
    kib = instance["memory_kib"]
    return "" if kib is None else memory(kib)


def _replicas(instance: View, cpu: float | None) -> str:
    first, number = instance["first_replica"], instance["num_replicas"]
    return str(first) if number == 1 else f"{first}-{first + number - 1}"


COLUMNS = (
    Column("INSTANCE", lambda instance, cpu: str(instance["index"])),
    Column("CPU", _state),
    Column("MEMORY", _memory),
    Column("REPLICAS", _replicas),
    Column(
        "IPUS",
        lambda instance, cpu: str(instance["num_ipus"]),
        is_used=lambda job: bool(job["num_ipus"]),
    ),
    Column(
        "HOST",
        lambda instance, cpu: str(instance["host"]),
        is_number=False,
        is_used=lambda job: len(job["hosts"]) > 1,
    ),
    Column(
        "LAST LINE", lambda instance, cpu: str(instance["last_line"]), is_number=False
    ),
)


def cpu_percent(job: View, before: View | None) -> dict[int, float]:
    """Return the CPU use of each instance that runs, in percent of one CPU.

    Args:
        before: The job a moment ago; without it, or where an instance was not measured
            then, the use is that since its start.
    """
    earlier = {i["index"]: i for i in before["instances"]} if before else {}
    percent = {}
    for instance in job["instances"]:
        used, span = instance["cpu_seconds"], instance["elapsed"]
        if used is None or span is None:
            continue
        old = earlier.get(instance["index"])
        if old and old["cpu_seconds"] is not None and old["pid"] == instance["pid"]:
            used, span = used - old["cpu_seconds"], span - old["elapsed"]
        if span >= LEAST_TIME_S:
            # A process that has left the tree takes its time with it.
            percent[instance["index"]] = max(0.0, 100 * used / span)
    return percent


def summary(job: View, percent: Mapping[int, float]) -> list[str]:
    """Return two lines about the job as a whole."""
    kib = [i["memory_kib"] for i in job["instances"] if i["memory_kib"] is not None]
    number, running = job["num_instances"], job["num_running"]
    # What changes comes first: narrow terminals cut the rest.
    parts = [f"{job['phase']} for {clock(job['elapsed'])}"]
    if percent:
        parts.append(f"{sum(percent.values()):.0f} % CPU")
    if kib:
        parts.append(memory(sum(kib)))
    of = "" if running == number else f"{running} of "
    parts.append(of + counted(number, "instance"))
    parts.append(counted(job["num_replicas"], "replica"))
    if job["num_ipus"]:
        parts.append(counted(job["num_ipus"], "IPU"))
    program = printable(shlex.join(job["program"])).replace("\n", "\\n")
    return [f"Job {job['id'][:8]}: {program}", ", ".join(parts)]


def instance_lines(job: View, percent: Mapping[int, float]) -> list[str]:
    """Return the head of the table, and a line for each instance."""
    columns = [c for c in COLUMNS if c.is_used is None or c.is_used(job)]
    rows = [[column.head for column in columns]]
    for instance in job["instances"]:
        cpu = percent.get(instance["index"])
        rows.append([column.cell(instance, cpu) for column in columns])
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [_line(columns, widths, row) for row in rows]


def _line(columns: Sequence[Column], widths: Sequence[int], row: Sequence[str]) -> str:
    cells = [
        cell.rjust(width) if column.is_number else cell.ljust(width)
        for column, width, cell in zip(columns, widths, row, strict=True)
    ]
    return GAP.join(cells).rstrip()
