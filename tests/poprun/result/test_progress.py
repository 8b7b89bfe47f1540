"""The line that says how far a job is."""

import signal

import pytest

from poprun.job.events import Event, Exited, Interrupted, Refused, ShimLost, Started
from poprun.result.progress import Progress


def text(instances: int, elapsed: float, *events: Event) -> str:
    progress = Progress(instances, began=100.0)
    for event in events:
        progress.listen(event)
    return progress.text(100.0 + elapsed)


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
