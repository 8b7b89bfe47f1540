import os
import pwd
import re
import signal
import time

import pytest

from poprun.log import DEBUG, INFO, Log
from poprun.supervise.event_log import EventLog
from poprun.wire.events import (
    Clean,
    Connected,
    Event,
    Exited,
    FailedInFinalize,
    GuardLost,
    HostJoins,
    HostLeaves,
    HostLost,
    Interrupted,
    MembersChanged,
    MpirunExited,
    MpirunStarted,
    NotUndone,
    OutputClosed,
    Refused,
    Remains,
    ShimLost,
    SlurmEndsJob,
    Started,
    Tick,
    WaitsInFinalize,
)


def told(verbosity: int, *events: Event, **options: bool) -> list[str]:
    """Return what is texts of events, without the time and the PID of each line."""
    texts: list[str] = []
    event_log = EventLog(Log(verbosity, texts.append), **options)
    for event in events:
        event_log.listen(event)
    return [re.sub(r"^[\d:.]+ \d+ ", "", line) for line in texts]


EXITED = Exited(
    rank=1,
    status=signal.SIGKILL,
    at_ns=time.monotonic_ns(),
    user_s=1.25,
    system_s=0.5,
    peak_kib=1024,
    by_itself=True,
)


def test_mpirun_is_told_of_in_the_words_of_the_original() -> None:
    assert told(INFO, MpirunStarted(pid=1825998)) == [
        "POPRUN [I] Waiting for mpirun (PID 1825998)\n"
    ]


@pytest.mark.parametrize(
    ("members", "go_on"), [((0, 2), "2 instances go on"), ((2,), "1 instance goes on")]
)
def test_a_change_of_members_is_told_with_its_reason(
    members: tuple[int, ...], go_on: str
) -> None:
    changed = MembersChanged(
        generation=3,
        members=members,
        lost=(1,),
        added=(),
        why="Instance 1 was killed by SIGKILL.",
        seconds=0.42,
    )

    assert told(0, changed) == [
        f"poprun: Instance 1 was killed by SIGKILL; {go_on} as generation 3 after "
        "0.4 s.\n"
    ]


def test_the_binding_that_the_kernel_knows_is_told() -> None:
    assert told(INFO, Started(rank=3, pid=4711, cpus=(0, 1, 2, 8))) == [
        "POPRUN [I] Instance 3 (PID 4711) runs on CPUs 0-2,8\n"
    ]


def test_the_end_of_an_instance_is_a_detail() -> None:
    assert told(INFO, EXITED) == []
    assert told(DEBUG, EXITED) == [
        "POPRUN [D] Instance 1 ended with exit code 137 after 1.75 s of CPU time\n"
    ]


def test_without_v_a_job_that_goes_well_is_not_told_of() -> None:
    events = [
        *(
            MpirunStarted(pid=1),
            Connected(rank=0),
            Started(rank=0, pid=os.getpid()),
            EXITED,
        ),
        *(
            Clean(rank=0, left_behind=0),
            Refused(rank=0, errno=2, tried="x"),
            ShimLost(rank=0),
            OutputClosed(),
            Tick(),
        ),
        MpirunExited(status=0),
    ]

    assert told(0, *events) == []


@pytest.mark.parametrize(("number", "words"), [(1, "1 process"), (12, "12 processes")])
def test_processes_that_a_program_forgot_are_told_of_in_any_case(
    number: int, words: str
) -> None:
    assert told(0, Clean(rank=2, left_behind=number)) == [
        f"poprun: Instance 2 left {words} running, which poprun ended.\n"
    ]


def test_a_wait_in_finalize_that_may_be_for_ever_is_told_of_in_any_case() -> None:
    assert told(0, WaitsInFinalize(rank=2)) == [
        "poprun: warning: The Python program of instance 2 has ended and waits in "
        "MPI_Finalize for the other instances. Its exit status is not known; if it "
        "failed, they may be waiting for it. With 'python -m mpi4py PROGRAM' instead "
        "of 'python PROGRAM', the failure of one instance ends all of them.\n"
    ]


def test_a_failure_in_finalize_is_told_of_at_the_end_and_before_it_with_v() -> None:
    assert told(0, FailedInFinalize(rank=1, status=3 << 8, at_ns=0)) == []
    assert told(INFO, FailedInFinalize(rank=1, status=3 << 8, at_ns=0)) == [
        "POPRUN [I] Instance 1 failed with exit code 3 and waits in "
        "MPI_Finalize for the others\n"
    ]


def test_with_keep_going_a_failure_in_finalize_is_told_of_at_once_and_once() -> None:
    failures = (
        FailedInFinalize(rank=1, status=3 << 8, at_ns=0),
        FailedInFinalize(rank=2, status=1 << 8, at_ns=0),
    )

    assert told(0, *failures, keep_going=True) == [
        "poprun: warning: Instance 1 failed with exit code 3 and waits in "
        "MPI_Finalize for the other instances. If they wait for it, the "
        "job does not end: --keep-going lets them continue.\n"
    ]


def test_a_guard_that_was_killed_is_told_of_in_any_case() -> None:
    assert told(0, GuardLost(host="n0")) == [
        "poprun: warning: poprun's guard was killed; another takes its place.\n"
    ]


def test_a_client_that_stops_the_job_is_named() -> None:
    interrupts = [Interrupted(signal=signal.SIGINT, client="popctl (PID 7)")] * 2

    assert told(0, *interrupts) == [
        "poprun: popctl (PID 7): stopping the instances; repeat to kill them.\n",
        "poprun: popctl (PID 7) again: killing everything.\n",
    ]


def test_ctrl_c_is_answered_and_the_answer_says_what_the_next_one_does() -> None:
    interrupts = [Interrupted(signal=signal.SIGINT), Interrupted(signal=signal.SIGTERM)]

    assert told(0, *interrupts) == [
        "poprun: SIGINT: stopping the instances; repeat to kill them.\n",
        "poprun: SIGTERM again: killing everything.\n",
    ]


def test_the_end_of_slurm_s_job_is_told_of_once() -> None:
    assert told(0, SlurmEndsJob(), SlurmEndsJob()) == [
        "poprun: warning: Slurm is ending its job: stopping the instances.\n"
    ]
    assert len(told(0, Interrupted(signal=signal.SIGTERM), SlurmEndsJob())) == 1
    assert told(0, SlurmEndsJob(), *[Interrupted(signal=signal.SIGTERM)] * 2) == [
        "poprun: warning: Slurm is ending its job: stopping the instances.\n",
        "poprun: SIGTERM again: killing everything.\n",
    ]
    assert told(0, SlurmEndsJob(), Interrupted(signal=signal.SIGINT)) == [
        "poprun: warning: Slurm is ending its job: stopping the instances.\n",
        "poprun: SIGINT: killing everything.\n",
    ]


def test_a_process_that_may_not_be_ended_is_named() -> None:
    me = pwd.getpwuid(os.geteuid()).pw_name

    remaining = [
        Remains(pid=4711, user=65534, command="sudo sleep 600", host="n0"),
        Remains(pid=12, user=54321, command="x", host="n0"),
        Remains(pid=12, user=54321, command="x", host="n0"),
    ]

    assert told(0, *remaining) == [
        "poprun: warning: Process 4711 of user nobody (sudo sleep 600) is "
        f"still running: user {me} has no permission to end it.\n",
        "poprun: warning: Process 12 of user 54321 (x) is still running: "
        f"user {me} has no permission to end it.\n",
    ]


def test_of_several_hosts_the_one_that_has_a_trouble_is_named() -> None:
    me = pwd.getpwuid(os.geteuid()).pw_name
    events = [
        Remains(pid=12, user=54321, command="x", host="n0"),
        Remains(pid=12, user=54321, command="x", host="n1"),
        GuardLost(host="n0"),
        NotUndone(sentence="No.", host="n1"),
    ]

    assert told(0, *events, names_hosts=True) == [
        "poprun: warning: Process 12 on n0 of user 54321 (x) is still "
        f"running: user {me} has no permission to end it.\n",
        "poprun: warning: Process 12 on n1 of user 54321 (x) is still "
        f"running: user {me} has no permission to end it.\n",
        "poprun: warning: poprun's guard on n0 was killed; another takes its place.\n",
        "poprun: warning: n1: No.\n",
    ]


def test_a_host_that_leaves_is_told_when_it_is_to_and_when_it_has() -> None:
    why = "the discovery script no longer prints n1"
    leaves = HostLeaves(host="n1", ranks=(1,), why=why)

    assert told(0, leaves, HostLost(host="n1", ranks=(1,), why=why)) == [
        f"poprun: {why}: the others go on without it at their next commit.\n",
        "poprun: The host n1 has left the job.\n",
    ]
    lost = HostLost(host="n1", ranks=(1,), why="it does not answer")
    assert told(0, leaves, lost)[1:] == [
        "poprun: warning: Lost the host n1: it does not answer.\n"
    ]


def test_a_job_that_has_grown_to_several_hosts_names_them() -> None:
    joins = HostJoins(host="n1", ranks=(1,))

    assert told(0, joins, NotUndone(sentence="No.", host="n1"))[-1].endswith(
        "n1: No.\n"
    )
