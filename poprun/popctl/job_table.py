"""The lines in which `popctl top` shows a job and its instances. Pure."""

import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from poprun.output.terminal import clock
from poprun.texts.tables import GAP, aligned
from poprun.words import counted, describe_instances, format_ranges, printable, size

# The description that a job sends, as JSON.
View = Mapping[str, Any]
# The kernel counts CPU time in hundredths of a second, so shorter times give no rates.
LEAST_TIME_S = 0.2
# On a narrow terminal other columns are left out until the last one has this width.
LEAST_LAST_LINE = 12
# Shorter waits for other instances are not shown.
LEAST_WAIT_S = 1.0


class Rates(NamedTuple):
    """The CPU time of an instance in percent, and its calls and bytes per second."""

    cpu: float
    calls: float
    num_bytes: float


class Column(NamedTuple):
    """A column of the table.

    cell: Returns the text for an instance with its rates.
    is_used: Returns whether any instance has something to show; None for always.
    left_out: The order in which a narrow terminal lacks the columns; 0 for never.
    """

    head: str
    cell: Callable[[View, Rates | None], str]
    is_number: bool = True
    is_used: Callable[[View], bool] | None = None
    left_out: int = 0


def _state(instance: View, rates: Rates | None) -> str:
    if instance["phase"] == "ended":
        code = instance["exit_code"]
        return "lost" if code is None else f"exit {code}"
    if instance["phase"] == "waiting":
        return "waiting"
    return "" if rates is None else f"{rates.cpu:.0f} %"


def _memory(instance: View, rates: Rates | None) -> str:
    kib = instance["memory_kib"]
    return "" if kib is None else size(kib * 1024)


def _replicas(instance: View, rates: Rates | None) -> str:
    first, number = instance["first_replica"], instance["num_replicas"]
    return str(first) if number == 1 else f"{first}-{first + number - 1}"


def _call(instance: View, rates: Rates | None) -> str:
    call = instance["call"]
    if call is None:
        return ""
    if call["missing"] and call["waited"] >= LEAST_WAIT_S:
        missing = format_ranges(call["missing"])
        return f"{call['operation']} waits {clock(call['waited'])} for {missing}"
    num_bytes = f" {size(call['bytes'])}" if call["bytes"] else ""
    return f"{call['operation']}{num_bytes}"


def _rate(instance: View, rates: Rates | None) -> str:
    if rates is None or not rates.calls:
        return ""
    if rates.num_bytes:
        return f"{size(rates.num_bytes)}/s"
    return f"{rates.calls:.0f} calls/s"


def _field(name: str) -> Callable[[View, Rates | None], str]:
    return lambda instance, rates: printable(str(instance[name]))


def _has_programs(job: View) -> bool:
    return len({i.get("program") for i in job["instances"]}) > 1


def _has_calls(job: View) -> bool:
    return any(instance["num_calls"] for instance in job["instances"])


def _has_hosts(job: View) -> bool:
    return len({instance["host"] for instance in job["instances"]}) > 1


def _has_ipus(job: View) -> bool:
    return bool(job["num_ipus"])


COLUMNS = (
    Column("INSTANCE", _field("index")),
    Column("PROGRAM", _field("program"), is_number=False, is_used=_has_programs),
    Column("CPU", _state),
    Column("MEMORY", _memory),
    Column("REPLICAS", _replicas, left_out=2),
    Column("IPUS", _field("num_ipus"), is_used=_has_ipus, left_out=1),
    Column("HOST", _field("host"), is_number=False, is_used=_has_hosts),
    Column("RATE", _rate, is_used=_has_calls, left_out=3),
    Column("CALL", _call, is_number=False, is_used=_has_calls),
    Column("LAST LINE", _field("last_line"), is_number=False),
)


def rates_of(job: View, before: View | None) -> dict[int, Rates]:
    """Return the rates of each instance that runs.

    Args:
        before: The job a moment ago. The rates of an instance that was not measured
            then are averages since its start.
    """
    earlier = {i["index"]: i for i in before["instances"]} if before else {}
    rates = {}
    for instance in job["instances"]:
        old = earlier.get(instance["index"])
        if instance["cpu_seconds"] is None or instance["elapsed"] is None:
            continue
        if old and (old["cpu_seconds"] is None or old["pid"] != instance["pid"]):
            old = None
        span, cpu, calls, num_bytes = (
            # A process that has left the tree takes its share with it.
            max(0.0, (instance[name] or 0) - ((old[name] or 0) if old else 0))
            for name in ("elapsed", "cpu_seconds", "num_calls", "total_bytes")
        )
        if span >= LEAST_TIME_S:
            rates[instance["index"]] = Rates(
                100 * cpu / span, calls / span, num_bytes / span
            )
    return rates


def last_change(job: View) -> str:
    """Return the generation or attempt of a job, and why it has begun; "" for none."""
    if not job.get("changed"):
        return ""
    kind = "generation" if job.get("generation") else "attempt"
    # A sentence about each of several hosts is a line of its own.
    return f"{kind} {job[kind]}: {printable(' '.join(job['changed'].split()))}"


def late_joins(job: View) -> str:
    """Return which instances of a job run and have not joined the others yet."""
    # poprun may be older than this popctl.
    since = job.get("joining")
    if not since:
        return ""
    verb = "has" if len(since) == 1 else "have"
    who = describe_instances(list(map(int, since)))
    return f"{who} {verb} not joined yet ({clock(max(since.values()))})"


def summary(job: View, rates: Mapping[int, Rates]) -> list[str]:
    """Return two lines about the job as a whole."""
    kib = [i["memory_kib"] for i in job["instances"] if i["memory_kib"] is not None]
    number, running = job["num_instances"], job["num_running"]
    # Values that change come first: narrow terminals cut the others.
    parts = [f"{job['phase']} for {clock(job['elapsed'])}"]
    if rates:
        parts.append(f"{sum(rate.cpu for rate in rates.values()):.0f} % CPU")
    if kib:
        parts.append(size(sum(kib) * 1024))
    some = "" if running == number else f"{running} of "
    parts.append(some + counted(number, "instance"))
    parts.append(counted(job["num_replicas"], "replica"))
    if change := last_change(job):
        parts.append(change)
    if job["num_ipus"]:
        parts.append(counted(job["num_ipus"], "IPU"))
    program = printable(shlex.join(job["program"])).replace("\n", "\\n")
    return [f"Job {job['id'][:8]}: {program}", ", ".join(parts)]


def instance_lines(job: View, rates: Mapping[int, Rates], width: int = 0) -> list[str]:
    """Return the head of the table, and a line for each instance.

    Args:
        width: The columns of the terminal, on which a line may be longer; 0 for none.
    """
    cells = {
        column: [
            column.head,
            *(column.cell(i, rates.get(i["index"])) for i in job["instances"]),
        ]
        for column in COLUMNS
        if column.is_used is None or column.is_used(job)
    }
    for column in sorted(cells, key=lambda column: column.left_out):
        *others, _ = cells.values()
        needed = sum(max(map(len, texts)) + len(GAP) for texts in others)
        if column.left_out and width and needed + LEAST_LAST_LINE > width:
            del cells[column]
    rows = list(zip(*cells.values(), strict=True))
    return aligned(rows, {i for i, c in enumerate(cells) if c.is_number})
