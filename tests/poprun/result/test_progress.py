"""The line that says how far a job is."""

import signal
from math import inf

import pytest

from poprun.job.events import (
    Event,
    Exited,
    Interrupted,
    Refused,
    ShimLost,
    Started,
    UsageMeasured,
)
from poprun.result.progress import Progress


def text(
    instances: int, elapsed: float, *events: Event, last_output: float = inf
) -> str:
    progress = Progress(instances, began=100.0)
    for event in events:
        progress.listen(event)
    return progress.text(100.0 + elapsed, last_output)


def exited(rank: int) -> Exited:
    return Exited(
        rank=rank, status=0, at_ns=0, user_s=0, system_s=0, peak_kib=0, by_itself=True
    )


def test_a_short_job_has_none() -> None:
    assert text(2, 0.4, Started(0, 1), Started(1, 2)) == ""


@pytest.mark.parametrize(
    ("events", "phase"),
    [
        ((), "starting, 0 of 3 instances running"),
        ((Started(1, 5),), "starting, 1 of 3 instances running"),
        ((Started(0, 5), Started(1, 6), Started(2, 7)), "3 instances running"),
        (
            (Started(0, 5), Started(1, 6), Started(2, 7), exited(1), exited(0)),
            "1 instance running, 2 ended",
        ),
        (
            (Started(0, 5), Refused(1, 2, "x"), Started(2, 7)),
            "2 instances running, 1 ended",
        ),
        (
            (Started(0, 5), ShimLost(1)),
            "starting, 1 of 3 instances running, 1 ended",
        ),
        (
            (Started(0, 5), Started(1, 6), exited(1), Interrupted(signal.SIGINT)),
            "stopping, 1 instance running, 1 ended",
        ),
        ((Interrupted(signal.SIGINT),), "stopping, 0 instances running"),
        (
            (Started(0, 5), Started(1, 6), Started(2, 7), *map(exited, range(3))),
            "all 3 instances ended",
        ),
    ],
)
def test_it_counts_what_runs_and_what_has_ended(
    events: tuple[Event, ...], phase: str
) -> None:
    assert text(3, 2.0, *events) == f"poprun: {phase} (0:02)"


@pytest.mark.parametrize(
    ("seconds", "clock"), [(0.6, "0:00"), (61.9, "1:01"), (3723.0, "1:02:03")]
)
def test_it_says_how_long_the_job_has_run(seconds: float, clock: str) -> None:
    assert text(1, seconds, Started(0, 5)) == f"poprun: 1 instance running ({clock})"


def waits(rank: int, seconds: float, *missing: int) -> UsageMeasured:
    return UsageMeasured(
        rank, 0.0, 0, 1, operation="all_reduce", waited_s=seconds, missing=missing
    )


@pytest.mark.parametrize(
    ("usages", "wait"),
    [
        ((), ""),
        ((waits(0, 4.0, 2),), ""),
        ((waits(0, 5.0, 2),), "all_reduce waits for instance 2 (0:05), "),
        ((waits(0, 70.0, 1, 2),), "all_reduce waits for instances 1 and 2 (1:10), "),
        ((waits(0, 6.0), waits(2, 9.0)), "all_reduce waits (0:09), "),
        ((waits(0, 9.0, 2), UsageMeasured(0, 0.0, 0, 1)), ""),
    ],
)
def test_it_names_the_collective_that_waits_for_long(
    usages: tuple[Event, ...], wait: str
) -> None:
    every = [Started(rank, rank) for rank in range(3)]

    status = f"poprun: {wait}3 instances running (2:00)"
    assert text(3, 120.0, *every, *usages) == status


def test_the_wait_grows_while_nothing_is_measured() -> None:
    progress = Progress(1, began=0.0)
    progress.listen(Started(0, 5))
    progress.listen(waits(0, 6.0))

    assert progress.text(20.0).startswith("poprun: all_reduce waits (0:06), ")
    assert progress.text(21.0).startswith("poprun: all_reduce waits (0:07), ")


def test_what_has_ended_waits_for_nothing() -> None:
    assert "waits" not in text(2, 120.0, Started(0, 1), waits(0, 9.0, 1), exited(0))


SILENT = ", no output for 5 min; see popctl dump"


@pytest.mark.parametrize(
    ("elapsed", "last_output", "silence"),
    [
        (299.0, -inf, ""),
        (300.0, -inf, SILENT),
        (359.0, -inf, SILENT),
        (4000.0, 3701.0, ""),
        (4000.0, 3700.0, SILENT),
        (4000.0, 3640.0, ", no output for 6 min; see popctl dump"),
    ],
)
def test_it_says_when_no_instance_has_written_anything_for_minutes(
    elapsed: float, last_output: float, silence: str
) -> None:
    progress = Progress(2, began=0.0)
    progress.listen(Started(0, 5))
    progress.listen(Started(1, 6))

    shown = progress.text(elapsed, last_output).rpartition(" (")[0]
    assert shown == f"poprun: 2 instances running{silence}"


@pytest.mark.parametrize(
    "events",
    [
        (Started(0, 5),),
        (Started(0, 5), Started(1, 6), Interrupted(signal.SIGINT)),
        (Started(0, 5), Started(1, 6), exited(0), exited(1)),
        (Started(0, 5), Started(1, 6), waits(0, 290.0, 1)),
    ],
)
def test_it_says_nothing_of_output_where_it_says_more(
    events: tuple[Event, ...],
) -> None:
    assert "no output" not in text(2, 400.0, *events, last_output=-inf)
