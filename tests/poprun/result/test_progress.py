"""The line that says how far a job is."""

import signal
from dataclasses import replace
from math import inf

import pytest

from poprun.result.progress import Progress
from poprun.wire.events import (
    Event,
    Exited,
    HostJoins,
    HostLost,
    Interrupted,
    MembersChanged,
    ReformAsked,
    ReformEnded,
    Refused,
    ShimLost,
    StacksShown,
    Started,
    StartedAgain,
    UsageMeasured,
)


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


ASKED = [
    ReformAsked(rank=rank, generation=0, links_port=1, store_port=2) for rank in (0, 2)
]
CHANGED = MembersChanged(
    generation=1, members=(0, 2, 3), lost=(1,), added=(), why="It.", seconds=0.1
)


def test_members_that_wait_to_re_form_are_named_with_those_that_are_missing() -> None:
    running = [Started(rank=rank, pid=rank + 1) for rank in range(4)]
    waits = "instances 0 and 2 wait for instance 3 to re-form, "

    assert text(4, 9, *running, exited(1), *ASKED) == (
        f"poprun: {waits}3 instances running, 1 ended (0:09)"
    )
    # Nobody waits for one that is being started again.
    assert waits in text(4, 9, *running, exited(1), StartedAgain(rank=1), *ASKED)
    assert "re-form" not in text(4, 9, *running, exited(1), *ASKED, CHANGED)
    gone = ReformEnded(rank=0), ReformEnded(rank=2)
    assert "re-form" not in text(4, 9, *running, exited(1), *ASKED, *gone)


def test_too_few_members_wait_for_an_instance_that_is_started_again() -> None:
    progress = Progress(3, began=0.0, least=2)
    for event in (
        *(Started(rank=rank, pid=rank + 1) for rank in range(3)),
        exited(1),
        StartedAgain(rank=1),
        exited(2),
        ASKED[0],
    ):
        progress.listen(event)

    waits = "instance 0 waits for instance 1 to re-form, "
    line = f"poprun: {waits}starting, 1 of 3 instances running, 1 ended (0:09)"
    assert progress.text(9.0) == line
    progress.listen(Started(rank=1, pid=9))
    assert progress.text(9.0) == (f"poprun: {waits}2 instances running, 1 ended (0:09)")


def test_instances_that_run_and_have_not_joined_are_named() -> None:
    progress = Progress(3, began=0.0)

    def listen(*events: Event) -> None:
        for event in events:
            progress.listen(event)

    listen(*(Started(rank=rank, pid=rank + 1) for rank in range(3)))
    listen(exited(1), StartedAgain(rank=1))
    assert progress.text(10.0) == ("poprun: starting, 2 of 3 instances running (0:10)")
    listen(Started(rank=1, pid=9))
    assert progress.text(20.0) == "poprun: 3 instances running (0:20)"
    late = "instance 1 has not joined (0:05), "
    assert progress.text(25.0) == f"poprun: {late}3 instances running (0:25)"
    asks = ReformAsked(rank=1, generation=0, links_port=1, store_port=2)
    listen(HostJoins(host="b", ranks=(3, 4)), Started(rank=3, pid=10), asks)
    assert progress.text(29.0).startswith("poprun: instance 1 waits for instances 0 ")
    listen(replace(CHANGED, members=(0, 1, 2), added=(1,)), Started(rank=4, pid=11))
    assert progress.text(33.0) == "poprun: 5 instances running (0:33)"
    late = "instances 3 and 4 have not joined (0:07), "
    assert progress.text(40.0) == f"poprun: {late}5 instances running (0:40)"
    listen(HostLost(host="b", ranks=(3, 4), why="x"))
    assert progress.text(50.0) == "poprun: 3 instances running, 2 ended (0:50)"


def test_a_short_job_has_none() -> None:
    assert text(2, 0.4, Started(rank=0, pid=1), Started(rank=1, pid=2)) == ""


@pytest.mark.parametrize(
    ("events", "phase"),
    [
        ((), "starting, 0 of 3 instances running"),
        ((Started(rank=1, pid=5),), "starting, 1 of 3 instances running"),
        (
            (Started(rank=0, pid=5), Started(rank=1, pid=6), Started(rank=2, pid=7)),
            "3 instances running",
        ),
        (
            (
                Started(rank=0, pid=5),
                Started(rank=1, pid=6),
                Started(rank=2, pid=7),
                exited(1),
                exited(0),
            ),
            "1 instance running, 2 ended",
        ),
        (
            (
                Started(rank=0, pid=5),
                Refused(rank=1, errno=2, tried="x"),
                Started(rank=2, pid=7),
            ),
            "2 instances running, 1 ended",
        ),
        (
            (Started(rank=0, pid=5), ShimLost(rank=1)),
            "starting, 1 of 3 instances running, 1 ended",
        ),
        (
            (
                Started(rank=0, pid=5),
                Started(rank=1, pid=6),
                exited(1),
                Interrupted(signal=signal.SIGINT),
            ),
            "stopping, 1 instance running, 1 ended",
        ),
        ((Interrupted(signal=signal.SIGINT),), "stopping, 0 instances running"),
        (
            (
                Started(rank=0, pid=5),
                Started(rank=1, pid=6),
                Started(rank=2, pid=7),
                *map(exited, range(3)),
            ),
            "all 3 instances ended",
        ),
    ],
)
def test_it_counts_what_runs_and_what_has_ended(
    events: tuple[Event, ...], phase: str
) -> None:
    assert text(3, 2.0, *events) == f"poprun: {phase} (0:02)"


def test_it_names_a_later_attempt() -> None:
    progress = Progress(1, 0.0, attempt=2)
    progress.listen(Started(rank=0, pid=5))

    assert progress.text(2.0) == "poprun: attempt 2, 1 instance running (0:02)"


@pytest.mark.parametrize(
    ("seconds", "clock"), [(0.6, "0:00"), (61.9, "1:01"), (3723.0, "1:02:03")]
)
def test_it_says_how_long_the_job_has_run(seconds: float, clock: str) -> None:
    assert (
        text(1, seconds, Started(rank=0, pid=5))
        == f"poprun: 1 instance running ({clock})"
    )


def waits(rank: int, seconds: float, *missing: int) -> UsageMeasured:
    return UsageMeasured(
        rank=rank,
        cpu_s=0.0,
        memory_kib=0,
        num_processes=1,
        operation="all_reduce",
        waited_s=seconds,
        missing=missing,
    )


@pytest.mark.parametrize(
    ("usages", "wait"),
    [
        ((), ""),
        ((waits(0, 4.0, 2),), ""),
        ((waits(0, 5.0, 2),), "all_reduce waits for instance 2 (0:05), "),
        ((waits(0, 70.0, 1, 2),), "all_reduce waits for instances 1 and 2 (1:10), "),
        ((waits(0, 6.0), waits(2, 9.0)), "all_reduce waits (0:09), "),
        (
            (
                waits(0, 9.0, 2),
                UsageMeasured(rank=0, cpu_s=0.0, memory_kib=0, num_processes=1),
            ),
            "",
        ),
    ],
)
def test_it_names_the_collective_that_waits_for_long(
    usages: tuple[Event, ...], wait: str
) -> None:
    every = [Started(rank=rank, pid=rank) for rank in range(3)]

    status = f"poprun: {wait}3 instances running (2:00)"
    assert text(3, 120.0, *every, *usages) == status


def test_the_wait_grows_while_nothing_is_measured() -> None:
    progress = Progress(1, began=0.0)
    progress.listen(Started(rank=0, pid=5))
    progress.listen(waits(0, 6.0))

    assert progress.text(20.0).startswith("poprun: all_reduce waits (0:06), ")
    assert progress.text(21.0).startswith("poprun: all_reduce waits (0:07), ")


def waits_in_torch(rank: int, seconds: float, number: int) -> UsageMeasured:
    """Return a measurement of an instance that waits in a group of 0, 1 and 2."""
    return UsageMeasured(
        rank=rank,
        cpu_s=0.0,
        memory_kib=0,
        num_processes=1,
        operation="broadcast",
        waited_s=seconds,
        group=7,
        number=number,
        members=(0, 1, 2),
        group_calls=(7, number),
    )


def test_the_status_names_who_is_missing_in_a_group_of_torch() -> None:
    every = [Started(rank=rank, pid=rank) for rank in range(3)]
    behind = UsageMeasured(
        rank=1, cpu_s=0.0, memory_kib=0, num_processes=1, group_calls=(7, 2)
    )
    waiting = [waits_in_torch(0, 9.0, 3), waits_in_torch(2, 8.0, 3)]

    assert text(3, 120.0, *every, *waiting, behind).startswith(
        "poprun: broadcast waits for instance 1 (0:09), "
    )
    has_come = UsageMeasured(
        rank=1, cpu_s=0.0, memory_kib=0, num_processes=1, group_calls=(7, 3)
    )
    assert "waits" not in text(3, 120.0, *every, *waiting, behind, has_come)


def test_the_waits_at_the_end_are_those_before_the_stacks() -> None:
    progress = Progress(4, began=0.0)
    for event in (waits(0, 9.0, 2, 3), waits(1, 12.4, 2, 3), waits(2, 7.0, 3)):
        progress.listen(event)
    progress.listen(StacksShown())
    progress.listen(UsageMeasured(rank=0, cpu_s=0.0, memory_kib=0, num_processes=1))
    progress.listen(exited(1))

    assert progress.describe_waits() == [
        "Instances 0 and 1 had waited 12 s in all_reduce for instances 2 and 3.",
        "Instance 2 had waited 7 s in all_reduce for instance 3.",
    ]


def test_a_stall_in_a_group_of_torch_is_reported_once() -> None:
    progress = Progress(3, began=0.0)
    progress.listen(waits_in_torch(0, 59.0, 3))
    assert progress.new_stalls(60.0) == []
    # The instances report those of popdist themselves.
    progress.listen(waits(1, 100.0, 2))
    progress.listen(waits_in_torch(0, 69.0, 3))

    assert progress.new_stalls(60.0) == [
        "Instance 0 has waited 69 s in broadcast for instances 1 and 2."
    ]
    progress.listen(waits_in_torch(0, 79.0, 3))
    assert progress.new_stalls(60.0) == []
    progress.listen(waits_in_torch(0, 1.0, 4))
    assert progress.new_stalls(60.0) == []
    progress.listen(waits_in_torch(0, 61.0, 4))
    assert len(progress.new_stalls(60.0)) == 1


def test_what_has_ended_waits_for_nothing() -> None:
    assert "waits" not in text(
        2, 120.0, Started(rank=0, pid=1), waits(0, 9.0, 1), exited(0)
    )


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
    progress.listen(Started(rank=0, pid=5))
    progress.listen(Started(rank=1, pid=6))

    shown = progress.text(elapsed, last_output).rpartition(" (")[0]
    assert shown == f"poprun: 2 instances running{silence}"


@pytest.mark.parametrize(
    "events",
    [
        (Started(rank=0, pid=5),),
        (
            Started(rank=0, pid=5),
            Started(rank=1, pid=6),
            Interrupted(signal=signal.SIGINT),
        ),
        (Started(rank=0, pid=5), Started(rank=1, pid=6), exited(0), exited(1)),
        (Started(rank=0, pid=5), Started(rank=1, pid=6), waits(0, 290.0, 1)),
    ],
)
def test_it_says_nothing_of_output_where_it_says_more(
    events: tuple[Event, ...],
) -> None:
    assert "no output" not in text(2, 400.0, *events, last_output=-inf)
