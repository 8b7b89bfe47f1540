"""The exit code and the cause, for every way in which a job may end."""

import errno
import signal
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from poprun.mpirun.hydra import Hydra
from poprun.mpirun.openmpi import OpenMpi5
from poprun.mpirun.values import MpirunFailure, MpirunReport
from poprun.output.stdin import Stdin
from poprun.result.instances import InstanceEnd, instance_ends
from poprun.result.verdict import Verdict, judge, may_restart
from poprun.supervise.attempt_end import AttemptEnd
from poprun.supervise.job_state import Cause, JobState, Reason
from poprun.wire.events import (
    DaemonKilled,
    DevicesLost,
    Event,
    Exited,
    FailedInFinalize,
    HostLost,
    HostsAvailable,
    Interrupted,
    MpirunExited,
    MpirunRefused,
    Orphaned,
    Refused,
    ShimLost,
)

NOTHING = MpirunReport(failure=MpirunFailure.NONE, code=0)
BOTH = frozenset({0, 1})


def exited(rank: int, status: int, at: int = 0, *, by_itself: bool = True) -> Exited:
    return Exited(
        rank=rank,
        status=status,
        at_ns=at,
        user_s=0.0,
        system_s=0.0,
        peak_kib=0,
        by_itself=by_itself,
    )


def failed(
    rank: int, status: int, at: int = 0, *, finalizing: bool = False
) -> InstanceEnd:
    return InstanceEnd(
        rank=rank, state="failed", status=status, at_ns=at, finalizing=finalizing
    )


def judged(
    state: JobState,
    events: Sequence[Event],
    mpirun_status: int | None,
    mpirun: MpirunReport,
    hosts: Sequence[str] = (),
) -> Verdict:
    """Return the verdict, with the fields of instances that `failed` has.

    Args:
        hosts: The host of each instance, of which mpirun runs on the first.
    """
    hosts = hosts or ["n0"] * max(3, state.num_instances)
    end = AttemptEnd(state=state, events=events, mpirun_status=mpirun_status)
    request = SimpleNamespace(programs=(), stdin=Stdin())
    assignments = [
        SimpleNamespace(
            host=SimpleNamespace(name=name),
            program=SimpleNamespace(argv=()),
            facts=SimpleNamespace(is_own_host=name == hosts[0]),
        )
        for name in hosts
    ]
    plan: Any = SimpleNamespace(request=request, assignments=assignments)
    instances = instance_ends(end, plan, lambda rank: b"")
    verdict = judge(end, instances, mpirun)
    return replace(
        verdict,
        first=verdict.first and _short(verdict.first),
        also=tuple(map(_short, verdict.also)),
        warnings=tuple(verdict.warnings),
    )


def _short(instance: InstanceEnd) -> InstanceEnd:
    return InstanceEnd(
        rank=instance.rank,
        state=instance.state,
        status=instance.status,
        at_ns=instance.at_ns,
        finalizing=instance.finalizing,
    )


def outcome(
    cause: Cause | None = None,
    events: Sequence[Event] = (),
    mpirun_status: int | None = 0,
    mpirun: MpirunReport = NOTHING,
    started: frozenset[int] = BOTH,
    mpirun_hung: bool = False,
) -> Verdict:
    state = JobState(
        num_instances=2,
        cause=cause,
        started=started,
        mpirun_hung=mpirun_hung,
        timeout=2.5,
        start_timeout=60.0,
    )
    return judged(state, events, mpirun_status, mpirun)


def stopped_by(reason: Reason, rank: int | None = None) -> Cause:
    return Cause(reason=reason, rank=rank)


# --- Instances.


def test_a_growth_is_no_failure_whatever_the_instances_do_then() -> None:
    growth = HostsAvailable(
        hosts=("a", "b", "c"), new_hosts=("b", "c"), num_running=1, num_instances=3
    )
    ends = [exited(0, signal.SIGTERM, by_itself=False), exited(1, 1 << 8)]

    verdict = outcome(stopped_by(Reason.GROWTH), [growth, *ends])

    assert (verdict.grows, verdict.first) == (True, None)
    assert verdict.sentence == (
        "The job grows from 1 to 3 instances, because the hosts b, c can be used."
    )


def test_a_start_without_a_host_is_no_failure() -> None:
    growth = HostsAvailable(
        hosts=("a",),
        new_hosts=(),
        num_running=2,
        num_instances=1,
        dropped="the hostfile no longer names b",
    )

    verdict = outcome(stopped_by(Reason.GROWTH), [growth, exited(0, signal.SIGTERM)])

    assert (verdict.grows, verdict.first) == (True, None)
    assert verdict.sentence == (
        "The job goes from 2 to 1 instance, because the hostfile no longer names b."
    )


def test_a_job_that_succeeds_before_it_is_stopped_to_grow_has_succeeded() -> None:
    growth = HostsAvailable(
        hosts=("a:2",), new_hosts=(), num_running=1, num_instances=2
    )

    ends = [exited(0, 0), exited(1, 0), exited(2, 0)]
    verdict = outcome(stopped_by(Reason.GROWTH), [growth, *ends])
    assert (verdict.exit_code, verdict.grows, verdict.sentence) == (0, False, "")

    ends[1] = exited(1, 0, by_itself=False)
    verdict = outcome(stopped_by(Reason.GROWTH), [growth, *ends])
    assert verdict.sentence.endswith(", because its hosts have more slots.")


LOST = HostLost(host="h1", ranks=(1,), why="it does not answer")


def test_a_lost_host_is_the_cause_if_it_told_no_end_after_a_failure() -> None:
    cause, failure = stopped_by(Reason.FAILED, 0), exited(0, 1 << 8, 5)

    verdict = outcome(cause, [failure, LOST])

    assert verdict.exit_code == 125
    assert verdict.sentence == (
        "The host h1 was lost: it does not answer. Instance 1 was on it, and the job "
        "was stopped."
    )
    # This one could be reached when the other instance failed, and was lost later.
    reachable = outcome(cause, [failure, exited(1, 15, 6, by_itself=False), LOST])
    assert (reachable.exit_code, reachable.first) == (1, failed(0, 1 << 8, 5))


def test_an_instance_killed_after_a_loss_that_the_job_survived_is_the_cause() -> None:
    cause, crash = stopped_by(Reason.FAILED, 0), exited(0, signal.SIGSEGV, 5)

    verdict = outcome(cause, [LOST, crash])

    assert (verdict.exit_code, verdict.first) == (139, failed(0, signal.SIGSEGV, 5))


def test_success_is_0_and_without_a_word() -> None:
    events = [exited(0, 0), exited(1, 0)]

    assert outcome(events=events) == Verdict(exit_code=0)


@pytest.mark.parametrize(
    ("status", "code", "how"),
    [
        pytest.param(1 << 8, 1, "exited with code 1", id="1"),
        pytest.param(2 << 8, 2, "exited with code 2", id="2"),
        pytest.param(124 << 8, 124, "exited with code 124", id="124"),
        pytest.param(255 << 8, 255, "exited with code 255", id="255"),
        pytest.param(signal.SIGHUP, 129, "was killed by SIGHUP", id="hup"),
        pytest.param(signal.SIGINT, 130, "was killed by SIGINT", id="int"),
        pytest.param(signal.SIGQUIT, 131, "was killed by SIGQUIT", id="quit"),
        pytest.param(signal.SIGKILL, 137, "was killed by SIGKILL", id="kill"),
        pytest.param(signal.SIGSEGV | 0x80, 139, "was killed by SIGSEGV", id="segv"),
        pytest.param(signal.SIGTERM, 143, "was killed by SIGTERM", id="term"),
        pytest.param(40, 168, "was killed by signal 40", id="real-time"),
    ],
)
def test_the_code_is_that_of_the_instance_or_128_and_its_signal(
    status: int, code: int, how: str
) -> None:
    found = outcome(stopped_by(Reason.FAILED, 1), [exited(1, status)])

    assert found == Verdict(exit_code=code, first=failed(1, status))
    assert found.first
    assert found.first.failure == how


@pytest.mark.parametrize(
    ("status", "code"), [(3 << 8, 3), (1 << 8, 1), (signal.SIGINT, 130)]
)
def test_an_instance_that_waits_in_finalize_has_failed_with_what_it_ends_with(
    status: int, code: int
) -> None:
    # It is ended by poprun then.
    events = [
        FailedInFinalize(rank=1, status=status, at_ns=5),
        exited(1, signal.SIGTERM, at=9, by_itself=False),
        exited(0, signal.SIGTERM, at=9, by_itself=False),
    ]
    found = outcome(stopped_by(Reason.FAILED, 1), events)

    first = failed(1, status, at=5, finalizing=True)
    assert found == Verdict(exit_code=code, first=first)
    assert first.failure == (
        f"failed with exit code {code} and waited in MPI_Finalize for the others"
    )


def test_one_that_ends_after_a_wait_in_finalize_counts_once() -> None:
    events = [
        FailedInFinalize(rank=1, status=3 << 8, at_ns=5),
        exited(1, 3 << 8, at=9),
        exited(0, 0, at=9),
    ]

    found = outcome(stopped_by(Reason.FAILED, 1), events)

    assert (found.first, found.also) == (failed(1, 3 << 8, at=9), ())


def test_the_first_failure_is_the_first_in_time_and_not_the_first_heard_of() -> None:
    events = [exited(0, 3 << 8, at=500), exited(2, 0, at=50), exited(1, 7 << 8, at=100)]

    assert outcome(stopped_by(Reason.FAILED, 0), events) == Verdict(
        exit_code=7, first=failed(1, 7 << 8, 100), also=(failed(0, 3 << 8, 500),)
    )


def test_victims_of_the_stop_are_no_failures() -> None:
    events = [
        exited(1, 7 << 8, at=100),
        exited(0, signal.SIGTERM, at=200, by_itself=False),
        exited(2, 1 << 8, at=300, by_itself=False),
    ]

    found = outcome(stopped_by(Reason.FAILED, 1), events)

    assert (found.first, found.also) == (failed(1, 7 << 8, 100), ())


def test_of_two_that_failed_in_the_same_instant_the_lower_one_is_first() -> None:
    events = [exited(1, 7 << 8, at=5), exited(0, 3 << 8, at=5)]

    assert outcome(events=events).exit_code == 3


def test_keep_going_ends_with_the_code_of_the_first_failure_too() -> None:
    events = [exited(1, 7 << 8, at=1), exited(0, 0, at=2)]

    assert outcome(None, events) == Verdict(exit_code=7, first=failed(1, 7 << 8, 1))


@pytest.mark.parametrize(
    ("number", "code", "sentence"),
    [
        pytest.param(
            errno.ENOENT,
            127,
            "Instance 1 could not be started: ./x: No such file or directory.",
            id="missing",
        ),
        pytest.param(
            errno.EACCES,
            126,
            "Instance 1 could not be started: ./x: Permission denied.",
            id="not-executable",
        ),
        pytest.param(
            errno.ENOEXEC,
            126,
            "Instance 1 could not be started: ./x: Exec format error.",
            id="no-program",
        ),
    ],
)
def test_a_program_that_cannot_run_is_127_or_126(
    number: int, code: int, sentence: str
) -> None:
    events = [
        Refused(rank=1, errno=number, tried="./x"),
        exited(0, signal.SIGTERM, by_itself=False),
    ]

    assert outcome(stopped_by(Reason.REFUSED, 1), events) == Verdict(
        exit_code=code, sentence=sentence
    )


@pytest.mark.parametrize(
    ("refused", "sentence"),
    [
        pytest.param(
            Refused(rank=1, errno=errno.EAGAIN, tried="", call="fork()"),
            "Instance 1 could not be started: fork() failed in its supervisor: "
            "Resource temporarily unavailable. The limit on processes has been "
            "reached: see 'ulimit -u' and pids.max of the cgroup.",
            id="fork",
        ),
        pytest.param(
            Refused(rank=1, errno=errno.EINVAL, tried="", call="sched_setaffinity()"),
            "Instance 1 could not be started: sched_setaffinity() failed in its "
            "supervisor: Invalid argument.",
            id="affinity",
        ),
    ],
)
def test_a_supervisor_that_cannot_start_its_program_is_no_error_of_the_program(
    refused: Refused, sentence: str
) -> None:
    assert outcome(stopped_by(Reason.REFUSED, 1), [refused]) == Verdict(
        exit_code=125, sentence=sentence
    )


def test_a_failure_without_an_errno_points_to_nothing_that_is_not_there() -> None:
    found = outcome(
        stopped_by(Reason.REFUSED, 0), [Refused(rank=0, errno=0, tried="KeyError('x')")]
    )

    assert found.sentence == "Instance 0 could not be started: KeyError('x')"


def test_an_mpirun_that_could_not_be_forked_did_not_end_with_a_code() -> None:
    events = [MpirunRefused(errno=errno.EAGAIN, call="fork()")]

    found = outcome(stopped_by(Reason.MPIRUN_ENDED), events, 127 << 8)

    assert found.exit_code == 125
    assert found.sentence.startswith("mpirun could not be started: fork(): Resource ")


# --- What stops poprun.


def test_a_client_that_stops_a_job_is_its_cause_and_the_code_is_that_of_ctrl_c() -> (
    None
):
    cause = Cause(
        reason=Reason.INTERRUPTED, signal=signal.SIGINT, client="popctl (PID 7)"
    )
    events = [exited(0, 2, by_itself=False), exited(1, 2, by_itself=False)]

    assert outcome(cause, events) == Verdict(
        exit_code=130, sentence="Stopped by popctl (PID 7)."
    )


@pytest.mark.parametrize(
    ("number", "code", "name"),
    [
        (signal.SIGHUP, 129, "SIGHUP"),
        (signal.SIGINT, 130, "SIGINT"),
        (signal.SIGQUIT, 131, "SIGQUIT"),
        (signal.SIGTERM, 143, "SIGTERM"),
    ],
)
def test_a_signal_to_poprun_is_128_and_its_number(
    number: int, code: int, name: str
) -> None:
    cause = Cause(reason=Reason.INTERRUPTED, signal=number)
    events = [exited(0, number, by_itself=False), exited(1, 3 << 8, by_itself=False)]

    assert outcome(cause, events) == Verdict(
        exit_code=code, sentence=f"Stopped by {name}."
    )


def test_a_failure_before_ctrl_c_does_not_make_it_another_code() -> None:
    cause = Cause(reason=Reason.INTERRUPTED, signal=signal.SIGINT)

    assert outcome(cause, [exited(0, 3 << 8)]).exit_code == 130


def test_a_job_that_took_too_long_is_124() -> None:
    assert outcome(stopped_by(Reason.TIMEOUT)) == Verdict(
        exit_code=124,
        sentence="The job took longer than the 2.5 s of --timeout and was stopped.",
    )


def test_a_job_that_did_not_start_in_time_is_124_and_names_an_instance() -> None:
    assert outcome(stopped_by(Reason.START_TIMEOUT), started=frozenset({0})) == Verdict(
        exit_code=124,
        sentence=(
            "mpirun did not start 1 of 2 instances within the 60 s of "
            "--start-timeout, instance 1 among them."
        ),
        quote_mpirun=True,
    )


def test_a_job_on_several_hosts_names_those_of_what_has_failed() -> None:
    hosts = ["n0", "n0", "n1", "n1"]

    def sentence(cause: Cause, *events: Event) -> str:
        started = frozenset({0, 1})
        state = JobState(
            num_instances=4, cause=cause, started=started, start_timeout=60
        )
        return judged(state, events, None, NOTHING, hosts).sentence

    assert sentence(Cause(reason=Reason.START_TIMEOUT)) == (
        "mpirun did not start 2 of 4 instances on n1 within the 60 s of "
        "--start-timeout, instance 2 among them."
    )
    refused = Refused(rank=3, errno=errno.ENOENT, tried="./x")
    assert sentence(Cause(reason=Reason.REFUSED, rank=3), refused) == (
        "Instance 3 on n1 could not be started: ./x: No such file or directory."
    )
    assert sentence(Cause(reason=Reason.SHIM_LOST, rank=2)).startswith(
        "The supervisor of instance 2 on n1 was killed, "
    )


def test_a_reader_that_has_gone_is_141_without_a_word() -> None:
    assert outcome(stopped_by(Reason.OUTPUT_CLOSED)) == Verdict(exit_code=141)


def test_a_job_that_has_lost_its_ipus_does_not_succeed() -> None:
    lost = DevicesLost(sentence="Its lease has ended.")

    assert outcome(
        stopped_by(Reason.DEVICES_LOST), [lost, exited(0, 15, by_itself=False)]
    ) == Verdict(
        exit_code=125,
        sentence="The job lost its IPUs, and was stopped. Its lease has ended.",
    )
    assert outcome(events=[exited(0, 0), exited(1, 0), lost]) == Verdict(
        exit_code=125,
        sentence="All instances ended with exit code 0, but the job had lost its IPUs "
        "by then. Its lease has ended.",
    )
    # An instance that failed before explains more.
    assert outcome(events=[exited(0, 3 << 8), lost]).exit_code == 3


# --- mpirun, and what poprun puts beside the instances.


@pytest.mark.parametrize(
    ("status", "how"),
    [
        (213 << 8, "ended with exit code 213"),
        (signal.SIGKILL, "was killed by SIGKILL"),
    ],
)
def test_mpirun_that_dies_is_125(status: int, how: str) -> None:
    events = [exited(0, signal.SIGTERM, by_itself=False)]
    mpirun = MpirunReport(failure=MpirunFailure.UNEXPLAINED, code=1)

    assert outcome(stopped_by(Reason.MPIRUN_ENDED), events, status, mpirun) == Verdict(
        exit_code=125,
        sentence=f"mpirun {how} while instances were running, and they were stopped.",
        quote_mpirun=True,
    )


def test_mpirun_that_was_killed_called_no_mpi_abort() -> None:
    # hydra says nothing of MPI_Abort but its code, and nothing when it is killed.
    mpirun = MpirunReport(failure=MpirunFailure.ABORTED, code=137)

    assert outcome(
        stopped_by(Reason.MPIRUN_ENDED), [], signal.SIGKILL, mpirun
    ) == Verdict(
        exit_code=125,
        sentence=(
            "mpirun was killed by SIGKILL while instances were running, and "
            "they were stopped."
        ),
        quote_mpirun=True,
    )


def test_a_failure_explains_why_mpirun_died() -> None:
    events = [exited(1, signal.SIGSEGV, at=9)]

    assert outcome(stopped_by(Reason.MPIRUN_ENDED), events, 139 << 8) == Verdict(
        exit_code=139, first=failed(1, signal.SIGSEGV, 9)
    )


@pytest.mark.parametrize(
    ("cause", "failure", "code"),
    [
        (None, MpirunFailure.PROXY_LOST, 255),
        (stopped_by(Reason.MPIRUN_ENDED), MpirunFailure.PROXY_LOST, 255),
        (None, MpirunFailure.DAEMON_LOST, 0),
        (stopped_by(Reason.MPIRUN_ENDED), MpirunFailure.DAEMON_LOST, 0),
        (stopped_by(Reason.SHIM_LOST, 1), MpirunFailure.DAEMON_LOST, 0),
    ],
)
def test_a_lost_proxy_is_named_whether_mpirun_ended_before_the_instances_or_after(
    cause: Cause | None, failure: MpirunFailure, code: int
) -> None:
    mpirun = MpirunReport(failure=failure, code=code)
    victim = exited(0, signal.SIGTERM, by_itself=False)

    assert outcome(cause, [victim], code << 8, mpirun) == Verdict(
        exit_code=125,
        sentence=(
            "mpirun ended the instances, because a process of its own was killed, and "
            f"then ended with exit code {code}."
        ),
        quote_mpirun=True,
    )


@pytest.mark.parametrize(
    ("failure", "code", "events", "host"),
    [
        pytest.param(
            MpirunFailure.PROXY_LOST,
            255,
            [
                Orphaned(rank=0),
                ShimLost(rank=0),
                MpirunExited(status=255 << 8),
                DaemonKilled(host="h1"),
            ],
            "h1",
            id="hydra",
        ),
        pytest.param(
            MpirunFailure.PROXY_LOST,
            255,
            [MpirunExited(status=255 << 8), Orphaned(rank=1), ShimLost(rank=3)],
            "h0",
            id="hydra, on its own host",
        ),
        pytest.param(
            MpirunFailure.DAEMON_LOST,
            0,
            [
                MpirunExited(status=0),
                Orphaned(rank=0),
                DaemonKilled(host="h1"),
                Orphaned(rank=3),
            ],
            "h1",
            id="Open MPI",
        ),
        pytest.param(
            MpirunFailure.UNEXPLAINED,
            137,
            [exited(0, 9), MpirunExited(status=137 << 8), DaemonKilled(host="h1")],
            "h1",
            id="Open MPI, without a word",
        ),
    ],
)
def test_a_daemon_of_mpirun_that_was_killed_is_named_with_its_host(
    failure: MpirunFailure, code: int, events: list[Event], host: str
) -> None:
    mpirun = MpirunReport(failure=failure, code=code)
    state = JobState(num_instances=4, cause=stopped_by(Reason.SHIM_LOST, 0))

    found = judged(state, events, code << 8, mpirun, ["h0", "h0", "h1", "h1"])

    assert found == Verdict(
        exit_code=125,
        sentence=(
            f"mpirun's daemon on {host} was killed, and the job with it. poprun did "
            "not do that. Find out what sends SIGKILL: perhaps the kernel, because "
            "memory ran out."
        ),
    )


@pytest.mark.parametrize(
    ("events", "status", "sentence"),
    [
        pytest.param(
            [DaemonKilled(host="h1"), MpirunExited(status=9)],
            9,
            "mpirun was killed by SIGKILL while instances were running, and "
            "they were stopped.",
            id="mpirun was killed",
        ),
        pytest.param(
            [MpirunExited(status=1 << 8), Orphaned(rank=0), Orphaned(rank=2)],
            1 << 8,
            "mpirun ended with exit code 1 while instances were running, and "
            "they were stopped.",
            id="mpirun ended first",
        ),
        pytest.param(
            [exited(0, 7 << 8), DaemonKilled(host="h1"), MpirunExited(status=1 << 8)],
            1 << 8,
            "",
            id="an instance failed first",
        ),
        pytest.param(
            [*(exited(rank, 0) for rank in range(4)), DaemonKilled(host="h1")],
            0,
            "mpirun ended with exit code 0 while instances were running, and "
            "they were stopped.",
            id="all instances had succeeded",
        ),
    ],
)
def test_a_daemon_of_mpirun_that_ends_after_another_process_is_no_cause(
    events: list[Event], status: int, sentence: str
) -> None:
    mpirun = MpirunReport(failure=MpirunFailure.UNEXPLAINED, code=1)
    state = JobState(num_instances=4, cause=stopped_by(Reason.MPIRUN_ENDED))

    found = judged(state, events, status, mpirun, ["h0", "h0", "h1", "h1"])

    assert found.sentence == sentence


def test_an_error_of_mpiruns_own_explains_a_lost_shim() -> None:
    text = "parse_exec_params: error parsing input array"
    mpirun = MpirunReport(failure=MpirunFailure.UNEXPLAINED, code=255, text=text)

    assert outcome(stopped_by(Reason.SHIM_LOST, 1), (), 255 << 8, mpirun) == Verdict(
        exit_code=125,
        sentence=(
            "mpirun ended with exit code 255 while instances were running, and "
            "they were stopped."
        ),
        quote_mpirun=True,
    )


def test_a_lost_shim_is_125_and_says_that_poprun_did_not_do_it() -> None:
    assert outcome(stopped_by(Reason.SHIM_LOST, 1), (), 137 << 8) == Verdict(
        exit_code=125,
        sentence=(
            "The supervisor of instance 1 was killed, and the job with it. "
            "poprun did not do that. Find out what sends SIGKILL: perhaps the kernel, "
            "because memory ran out."
        ),
    )


@pytest.mark.parametrize(
    ("started", "which"), [(frozenset(), "any"), (frozenset({0}), "every")]
)
@pytest.mark.parametrize(
    ("status", "how"),
    [(0, "ended with exit code 0"), (251 << 8, "ended with exit code 251")],
)
def test_mpirun_that_ends_too_early_is_125_whatever_its_code(
    started: frozenset[int], which: str, status: int, how: str
) -> None:
    mpirun = replace(NOTHING, hint="Mend it.")

    assert outcome(None, [], status, mpirun, started) == Verdict(
        exit_code=125,
        sentence=f"mpirun {how} before it had started {which} instance. Mend it.",
        quote_mpirun=True,
    )


def test_mpirun_that_fails_after_all_have_succeeded_is_125() -> None:
    mpirun = MpirunReport(failure=MpirunFailure.UNEXPLAINED, code=1)

    assert outcome(None, [exited(0, 0), exited(1, 0)], 1 << 8, mpirun) == Verdict(
        exit_code=125,
        sentence="All instances succeeded, but then mpirun ended with exit code 1.",
        quote_mpirun=True,
    )


@pytest.mark.parametrize(("rank", "who"), [(1, "Instance 1"), (None, "An instance")])
def test_an_end_without_finalize_is_a_success_with_a_warning(
    rank: int | None, who: str
) -> None:
    mpirun = MpirunReport(failure=MpirunFailure.NOT_FINALIZED, rank=rank, code=1)

    assert outcome(None, [exited(0, 0), exited(1, 0)], 1 << 8, mpirun) == Verdict(
        exit_code=0,
        warnings=(f"{who} called MPI_Init and ended without MPI_Finalize.",),
    )


@pytest.mark.parametrize("status", [signal.SIGKILL, None])
def test_mpirun_that_hangs_after_all_have_succeeded_costs_a_warning(
    status: int | None,
) -> None:
    assert outcome(mpirun_status=status, mpirun_hung=True) == Verdict(
        exit_code=0,
        warnings=("mpirun did not end after its last instance and was killed.",),
    )


def test_mpirun_that_hangs_after_a_failure_is_warned_about_too() -> None:
    found = outcome(stopped_by(Reason.FAILED, 0), [exited(0, 3 << 8)], mpirun_hung=True)

    assert (found.exit_code, found.warnings) == (
        3,
        ("mpirun did not end after its last instance and was killed.",),
    )


# --- MPI_Abort.


@pytest.mark.parametrize(
    "cause", [None, stopped_by(Reason.MPIRUN_ENDED), stopped_by(Reason.SHIM_LOST, 0)]
)
def test_mpi_abort_is_its_code_as_mpirun_gives_it(cause: Cause | None) -> None:
    mpirun = MpirunReport(failure=MpirunFailure.ABORTED, rank=1, code=42)
    victim = exited(0, signal.SIGTERM, by_itself=False)

    assert outcome(cause, [victim], 42 << 8, mpirun) == Verdict(
        exit_code=42,
        first=failed(1, 42 << 8),
        sentence=(
            "Instance 1 called MPI_Abort with error code 42, and mpirun ended the "
            "others."
        ),
    )


@pytest.mark.parametrize("rank", [None, 99])
def test_mpi_abort_of_an_unknown_rank_gives_its_code_too(rank: int | None) -> None:
    mpirun = MpirunReport(failure=MpirunFailure.ABORTED, rank=rank, code=42)

    assert outcome(None, [], 42 << 8, mpirun) == Verdict(
        exit_code=42, sentence="An instance called MPI_Abort with error code 42."
    )


def test_mpi_abort_with_0_is_a_failure_nevertheless() -> None:
    mpirun = MpirunReport(failure=MpirunFailure.ABORTED, rank=1, code=0)

    found = outcome(None, [], 0, mpirun)

    assert found.exit_code == 1
    assert found.sentence.startswith("Instance 1 called MPI_Abort with error code 0,")


@pytest.mark.parametrize(("error", "code"), [(256, 1), (300, 44), (-1, 255)])
def test_mpi_abort_ends_with_the_last_byte_of_its_code(error: int, code: int) -> None:
    mpirun = MpirunReport(failure=MpirunFailure.ABORTED, rank=1, code=error)

    found = outcome(None, [], (error & 0xFF) << 8, mpirun)

    assert found.exit_code == code
    assert f" error code {error}, and mpirun ended the others." in found.sentence


OPEN_MPI = OpenMpi5(path="mpirun", version="5")
HYDRA = Hydra(path="mpirun", version="5")


# In which order mpirun's end and that of the instances are heard of is chance.
@pytest.mark.parametrize(
    "cause", [None, stopped_by(Reason.MPIRUN_ENDED), stopped_by(Reason.SHIM_LOST, 0)]
)
def test_open_mpi_that_ends_with_0_too_early_has_seen_mpi_abort(
    cause: Cause | None,
) -> None:
    # With 0 or 256, and MPI's words are lost.
    events = [exited(1, 0), exited(0, signal.SIGTERM, by_itself=False)]

    found = outcome(cause, events, 0, OPEN_MPI.explain("", 0))

    assert found.exit_code == 1
    assert found.sentence == (
        "mpirun ended with exit code 0 while instances were running, and "
        "they were stopped. It does that when one of them calls MPI_Abort "
        "with error code 0 or a multiple of 256."
    )


def test_a_daemon_that_open_mpi_could_not_start_is_no_mpi_abort() -> None:
    # The shell that starts it on the other host was killed, for one.
    rule = "-" * 60
    text = f"{rule}\nA daemon failed to report back after being spawned.\n{rule}"
    events = [exited(0, signal.SIGTERM, by_itself=False)]

    found = outcome(None, events, 0, OPEN_MPI.explain(text, 0))

    assert found.exit_code == 125
    assert found.quote_mpirun
    assert found.sentence == (
        "mpirun ended with exit code 0 while instances were running, and "
        "they were stopped."
    )


@pytest.mark.parametrize(
    "cause", [None, stopped_by(Reason.MPIRUN_ENDED), stopped_by(Reason.SHIM_LOST, 0)]
)
def test_hydra_ends_with_0_too_early_for_reasons_of_its_own(
    cause: Cause | None,
) -> None:
    # On SIGTERM, for one.
    events = [exited(1, 0), exited(0, signal.SIGTERM, by_itself=False)]

    found = outcome(cause, events, 0, HYDRA.explain("", 0))

    assert found.exit_code == 125
    assert found.sentence == (
        "mpirun ended with exit code 0 while instances were running, and "
        "they were stopped."
    )


def test_a_signal_after_all_have_succeeded_fails_nothing() -> None:
    state = JobState(num_instances=2, started=BOTH, mpirun_killed=True)

    found = judged(state, [exited(0, 0), exited(1, 0)], signal.SIGKILL, NOTHING)

    assert found == Verdict(exit_code=0)


def test_who_called_mpi_abort_did_not_fail_besides() -> None:
    mpirun = MpirunReport(failure=MpirunFailure.ABORTED, rank=1, code=42)
    events = [exited(1, 42 << 8, at=1), exited(0, 3 << 8, at=2)]

    assert outcome(None, events, 42 << 8, mpirun).also == (failed(0, 3 << 8, 2),)


def test_a_failure_that_poprun_saw_first_counts_more_than_mpis_words() -> None:
    mpirun = MpirunReport(failure=MpirunFailure.ABORTED, rank=1, code=42)
    events = [exited(0, 3 << 8)]

    found = outcome(stopped_by(Reason.FAILED, 0), events, 42 << 8, mpirun)

    assert (found.exit_code, found.first) == (3, failed(0, 3 << 8))


ONE = frozenset({0})


@pytest.mark.parametrize(
    ("reason", "follows"),
    [
        (None, True),  # with --keep-going, all have ended
        (Reason.FAILED, True),
        (Reason.HOST_LOST, True),
        (Reason.GROWTH, True),
        (Reason.MPIRUN_ENDED, True),
        (Reason.SHIM_LOST, True),
        (Reason.INTERRUPTED, False),
        (Reason.TIMEOUT, False),
        (Reason.START_TIMEOUT, False),
        (Reason.OUTPUT_CLOSED, False),
        (Reason.REFUSED, False),
        (Reason.DEVICES_LOST, False),
    ],
)
def test_another_attempt_follows_what_may_not_happen_again(
    reason: Reason | None, follows: bool
) -> None:
    cause = None if reason is None else Cause(reason=reason)
    state = JobState(num_instances=2, started=ONE, cause=cause)

    assert may_restart(AttemptEnd(state=state, events=[])) is follows


def test_no_attempt_follows_where_no_instance_has_run() -> None:
    cause = Cause(reason=Reason.MPIRUN_ENDED)

    assert not may_restart(
        AttemptEnd(state=JobState(num_instances=2, cause=cause), events=[])
    )


def test_a_signal_after_the_failure_counts() -> None:
    state = JobState(
        num_instances=2, started=ONE, cause=Cause(reason=Reason.FAILED, rank=1)
    )

    assert not may_restart(
        AttemptEnd(state=state, events=[Interrupted(signal=signal.SIGINT)])
    )


def test_output_that_was_lost_is_no_failure_of_the_job() -> None:
    assert not Verdict(exit_code=74).has_failed
    assert Verdict(exit_code=125, sentence="mpirun ended.").has_failed
    assert Verdict(exit_code=3, first=failed(0, 3 << 8)).has_failed
