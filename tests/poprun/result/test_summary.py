"""How each instance ended, in a line and in a table."""

import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from plans import FACTS, make_request, planned

from poprun.host_specs import HostSpec
from poprun.mpirun.values import MpirunFailure, MpirunReport
from poprun.plan.topology import Topology
from poprun.result.instances import InstanceEnd, instance_ends
from poprun.result.summary import in_a_line, table
from poprun.result.verdict import judge
from poprun.supervise.attempt_end import AttemptEnd
from poprun.supervise.generations import decide
from poprun.supervise.job_state import Cause, JobState, Reason
from poprun.supervise.membership import first_members
from poprun.wire.events import Event, Exited, FailedInFinalize, Refused, Started

SECOND = 10**9
NOTHING = MpirunReport(failure=MpirunFailure.NONE, code=0)
RUNNING = JobState(num_instances=2)


def exited(rank: int, status: int, *, by_itself: bool = True, at_s: int = 3) -> Exited:
    return Exited(
        rank=rank,
        status=status,
        at_ns=at_s * SECOND,
        user_s=1.5,
        system_s=0.25,
        peak_kib=2048,
        by_itself=by_itself,
    )


def ends(
    *events: Event,
    mpirun: MpirunReport = NOTHING,
    state: JobState = RUNNING,
) -> Sequence[InstanceEnd]:
    plan = planned(
        make_request(
            Topology(num_instances=2, num_replicas=2, num_hosts=2),
            [HostSpec(name="a"), HostSpec(name="b")],
            [FACTS, FACTS],
        )
    )
    started_ns = {0: SECOND, 1: SECOND}
    end = AttemptEnd(state=state, events=events, started_ns=started_ns)
    instances = instance_ends(end, plan, lambda rank: b"")
    end = replace(end, events=end.unsurvived_events)
    return judge(end, instances, mpirun).instances


def test_an_instance_that_others_went_on_without_is_lost_with_its_signal() -> None:
    death, end_of_other = exited(1, 9), exited(0, 0, at_s=5)
    members = first_members(("a",) * 2, refusal="", able=frozenset({0, 1}))
    members, _ = decide(members, death, now=3.0)

    first, second = ends(
        *(Started(rank=0, pid=7), Started(rank=1, pid=8), death, end_of_other),
        state=replace(RUNNING, membership=members),
    )

    assert (first.state, first.wall_s) == ("succeeded", 4.0)
    assert (second.state, second.signal_name) == ("lost", "SIGKILL")
    assert (second.exit_code, second.wall_s, second.peak_kib) == (137, 2.0, 2048)


def states(*events: Event) -> list[str]:
    return [end.state for end in ends(*events)]


def test_an_instance_has_the_usage_that_its_supervisor_reports() -> None:
    first, _ = ends(
        Started(rank=0, pid=7), exited(0, 0), Started(rank=1, pid=8), exited(1, 0)
    )

    assert first == InstanceEnd(
        rank=0,
        host="a",
        state="succeeded",
        status=0,
        wall_s=2.0,
        user_s=1.5,
        system_s=0.25,
        peak_kib=2048,
        program=("program",),
        at_ns=3 * SECOND,
        stdin_advice="0, or --stdin all for each instance to get a copy",
    )
    assert (first.exit_code, first.signal_name, first.cpu_s) == (0, None, 1.75)


def test_what_poprun_has_stopped_has_not_failed() -> None:
    events = exited(0, 3 << 8), exited(1, signal.SIGTERM, by_itself=False)

    assert states(*events) == ["failed", "stopped"]
    assert ends(*events)[1].signal_name == "SIGTERM"


def test_an_instance_that_obeys_the_signal_with_0_was_stopped() -> None:
    assert states(exited(0, 0, by_itself=False), exited(1, 0)) == [
        "stopped",
        "succeeded",
    ]


def test_mpi_abort_is_a_failure_although_mpirun_has_sent_the_signal() -> None:
    event = exited(0, signal.SIGTERM, by_itself=False)
    aborted = MpirunReport(failure=MpirunFailure.ABORTED, rank=0, code=42)
    first, _ = ends(event, mpirun=aborted)

    assert (first.state, first.exit_code) == ("failed", 42)


def test_a_failure_in_mpi_finalize_counts_with_its_own_code() -> None:
    events = (
        FailedInFinalize(rank=0, status=5 << 8, at_ns=1),
        exited(0, signal.SIGTERM, by_itself=False),
    )

    assert ends(*events)[0].exit_code == 5
    assert ends(*events)[0].state == "failed"


def test_a_failure_in_mpi_finalize_counts_in_a_job_that_is_stopped_then() -> None:
    cause = Cause(reason=Reason.INTERRUPTED, signal=signal.SIGINT)
    state = JobState(num_instances=2, cause=cause)
    events = FailedInFinalize(rank=0, status=5 << 8, at_ns=1), exited(0, 3 << 8)

    assert [e.state for e in ends(*events, state=state)] == ["failed", "not started"]
    assert ends(events[1], state=state)[0].state == "stopped"


def test_what_has_not_reported_its_end_is_lost_or_was_never_started() -> None:
    assert states(Started(rank=0, pid=7)) == ["lost", "not started"]
    assert states(Refused(rank=1, errno=2, tried="x")) == ["not started", "not started"]


def test_a_line_names_the_instances_of_each_state_and_the_largest() -> None:
    common: dict[str, Any] = {"host": "a", "wall_s": 1.0}
    some = [
        InstanceEnd(rank=0, state="stopped", peak_kib=1024, **common),
        InstanceEnd(rank=1, state="failed", peak_kib=3 * 1024, **common),
        InstanceEnd(rank=2, state="stopped", peak_kib=2048, host="a", wall_s=12.5),
        InstanceEnd(rank=3, state="lost", host="b"),
    ]

    assert in_a_line(some) == (
        "4 instances: 1 failed (1), 2 stopped (0,2), 1 lost (3); 12.50 s at most; "
        "peak memory 3 MiB (instance 1)."
    )


def test_a_line_leaves_out_what_is_not_known() -> None:
    assert in_a_line([InstanceEnd(rank=0, host="a", state="lost")]) == (
        "1 instance: 1 lost (0)."
    )


SOME = [
    InstanceEnd(
        rank=9,
        host="node1",
        state="failed",
        status=signal.SIGKILL,
        wall_s=1.25,
        user_s=1.0,
        system_s=0.5,
        peak_kib=512 * 1024,
    ),
    InstanceEnd(
        rank=10,
        host="node2",
        state="stopped",
        status=15,
        wall_s=7325.0,
        user_s=61.0,
        system_s=40.0,
        peak_kib=1 << 20,
    ),
    InstanceEnd(rank=11, host="node2", state="not started"),
]


def test_a_table_has_a_line_for_each_instance() -> None:
    assert table(SOME).splitlines() == [
        "how the instances ended:",
        "    instance  host   exit              wall     CPU     peak memory",
        "    9         node1  SIGKILL           1.25 s   1.50 s  512 MiB",
        "    10        node2  SIGTERM, stopped  2:02:05  1:41    1 GiB",
        "    11        node2  not started       -        -       -",
    ]


def test_a_narrow_terminal_gets_fewer_columns() -> None:
    for columns in (80, 60, 50, 40):
        lines = table(SOME, columns).splitlines()
        assert max(map(len, lines)) <= columns
        assert "exit" in lines[1]
        assert "host" in lines[1]
    assert "CPU" in table(SOME, 80)
    assert "CPU" not in table(SOME, 60)
    assert "peak memory" in table(SOME, 60)
