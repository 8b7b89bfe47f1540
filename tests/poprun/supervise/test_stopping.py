"""What a job does when something happens to it, told as events and actions."""

import signal
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poprun.supervise.job_state import (
    Action,
    Cause,
    JobState,
    Phase,
    Reason,
    ShowStacks,
    SignalMpirun,
    TellHosts,
)
from poprun.supervise.membership import Answer, first_members
from poprun.supervise.stopping import STACKS_S, decide
from poprun.wire import protocol
from poprun.wire.events import (
    CanReform,
    Clean,
    Connected,
    DebuggerInterrupted,
    DebuggerReady,
    DevicesLost,
    Event,
    Exited,
    FailedInFinalize,
    GuardLost,
    HostJoins,
    HostLeaves,
    HostLost,
    HostsAvailable,
    Interrupted,
    MpirunExited,
    MpirunStarted,
    OutputClosed,
    PromptOver,
    PromptShown,
    ReformAsked,
    Refused,
    ShimLeft,
    ShimLost,
    SlurmEndsJob,
    StacksShown,
    Started,
    StartedAgain,
    Tick,
    WaitsInFinalize,
)

GROWTH = HostsAvailable(
    hosts=("a", "b"), new_hosts=("b",), num_running=2, num_instances=4
)
INT, TERM, KILL = signal.SIGINT, signal.SIGTERM, signal.SIGKILL


def exited(rank: int, status: int = 0, *, by_itself: bool = True) -> Exited:
    return Exited(
        rank=rank,
        status=status,
        at_ns=0,
        user_s=0.0,
        system_s=0.0,
        peak_kib=0,
        by_itself=by_itself,
    )


def words(action: Action | Answer) -> str:
    # Not the actions themselves: named tuples of two classes may well be equal.
    match action:
        case ShowStacks():
            return "show stacks"
        case TellHosts(kind=protocol.SIGNAL, values=[number]):
            return f"{signal.Signals(number).name} to instances"
        case TellHosts(kind=protocol.INTERRUPT_INSTANCE, values=[rank]):
            return f"interrupt {rank}"
        case TellHosts(kind=protocol.KILL):
            return "kill instances"
        case TellHosts(kind=protocol.RELEASE):
            return "release shims"
        case SignalMpirun(signal=number):
            return f"{signal.Signals(number).name} to mpirun"
        case _:
            return type(action).__name__


class Story:
    """One job, event by event, on a clock that starts at 0."""

    def __init__(self, state: JobState) -> None:
        self.state = state

    def __call__(self, now: float, *events: Event) -> list[str]:
        """Let events happen, and return all that is to be done for them."""
        done: list[str] = []
        for event in events:
            self.state, actions = decide(self.state, event, now)
            done += map(words, actions)
        return done

    @property
    def phase(self) -> Phase:
        return self.state.phase

    @property
    def cause(self) -> Cause | None:
        return self.state.cause

    @property
    def deadline(self) -> float:
        return self.state.deadline


def running(num_instances: int = 2, **settings: object) -> Story:
    """Return a job all of whose instances are running."""
    story = Story(JobState(num_instances=num_instances, **settings))  # type: ignore[arg-type]
    assert story(0, MpirunStarted(pid=100)) == []
    for rank in range(num_instances):
        assert story(0, Connected(rank=rank), Started(rank=rank, pid=200 + rank)) == []
    assert story.phase is Phase.RUNNING
    return story


# --- A job that goes well.


def test_a_job_whose_instances_all_succeed_is_over_when_mpirun_has_left() -> None:
    story = running()

    assert story(1, exited(0), Clean(rank=0, left_behind=0), exited(1)) == []
    assert story.phase is Phase.RUNNING
    assert story(1, Clean(rank=1, left_behind=0)) == ["release shims"]
    assert (story.phase, story.deadline) == (Phase.LEAVING, 3)
    assert story(2, Tick()) == []
    assert story(2, MpirunExited(status=0)) == []
    assert (story.phase, story.deadline) == (Phase.OVER, inf)
    assert (story.cause, story.state.mpirun_hung) == (None, False)


def test_an_instance_has_not_ended_while_something_of_it_is_left() -> None:
    story = running(1)

    assert story(1, exited(0)) == []
    assert story.phase is Phase.RUNNING


def elastic(**settings: object) -> Story:
    """Return a running job of three instances, two of which are enough."""
    members = first_members(("a",) * 3, refusal="", least=2)
    story = running(3, membership=members, **settings)
    for rank in range(3):
        story(0, CanReform(rank=rank))
    return story


@pytest.mark.parametrize(
    "loss",
    [
        exited(1, KILL),
        ShimLost(rank=1),
        HostLost(host="b", ranks=(1,), why="it is gone"),
    ],
)
def test_an_elastic_job_goes_on_without_one_instance_but_not_without_two(
    loss: Event,
) -> None:
    story = elastic()

    assert "SIGTERM to instances" not in story(1, loss)
    assert (story.phase, story.cause) == (Phase.RUNNING, None)
    assert story.state.failed is None
    assert "SIGTERM to instances" in story(2, exited(2, 3 << 8))
    assert story.cause == Cause(reason=Reason.FAILED, rank=2)


def test_one_that_is_lost_before_its_start_is_not_waited_for() -> None:
    members = first_members(("a",) * 3, refusal="", least=1)
    story = Story(JobState(num_instances=3, membership=members, starts_by=60))
    for rank in range(2):
        story(0, Connected(rank=rank), Started(rank=rank, pid=200 + rank))
        story(0, CanReform(rank=rank))

    story(1, HostLost(host="b", ranks=(2,), why="it is gone"))
    assert (story.phase, story.deadline) == (Phase.RUNNING, inf)
    for rank in range(2):
        actions = story(2, exited(rank), Clean(rank=rank, left_behind=0))
    # mpirun has nothing more to start.
    assert actions == ["release shims"]
    assert story.state.have_all_started


def test_an_elastic_job_with_keep_going_is_not_stopped() -> None:
    story = elastic(keep_going=True)

    story(1, exited(0, KILL), exited(1, KILL))
    assert story.phase is Phase.RUNNING
    # The second loss is a failure of the job.
    assert story.state.failed == 1


def test_an_instance_that_is_started_again_has_not_ended() -> None:
    story = elastic()

    for rank in range(2):
        story(1, exited(rank), Clean(rank=rank, left_behind=0))
    story(1, StartedAgain(rank=1))
    story(2, exited(2), Clean(rank=2, left_behind=0))
    assert story.phase is Phase.RUNNING
    story(3, exited(1), Clean(rank=1, left_behind=0))
    assert story.phase is Phase.LEAVING


def test_an_elastic_job_outlives_an_mpirun_whose_instances_are_all_lost() -> None:
    members = first_members(("a", "b"), refusal="")
    story = running(2, membership=members)
    story(0, CanReform(rank=0), CanReform(rank=1))
    story(1, HostLost(host="b", ranks=(1,), why="it is gone"))
    story(2, HostJoins(host="b", ranks=(1,)))
    assert not story.state.have_all_started
    story(2, Connected(rank=1), Started(rank=1, pid=300), CanReform(rank=1))
    story(3, asks(1), asks(0))
    story(4, HostLost(host="a", ranks=(0,), why="it is gone"))
    assert story.state.outlives_mpirun
    story(5, MpirunExited(status=255 << 8))
    assert story.phase is Phase.RUNNING
    story(6, exited(1), Clean(rank=1, left_behind=0))
    assert (story.phase, story.cause) == (Phase.OVER, None)


def test_a_host_that_leaves_ends_after_the_others_and_fails_nothing() -> None:
    members = first_members(("a", "b"), refusal="")
    story = running(2, membership=members)
    story(0, CanReform(rank=0), CanReform(rank=1))
    story(1, HostLeaves(host="b", ranks=(1,), why="x"), asks(0), asks(1))
    story(2, exited(0), Clean(rank=0, left_behind=0))
    story(3, exited(1, 256))
    assert (story.phase, story.state.failed) == (Phase.RUNNING, None)
    story(4, HostLost(host="b", ranks=(1,), why="x"))
    assert (story.phase, story.cause) == (Phase.LEAVING, None)


def test_an_mpirun_that_ends_before_its_instances_stops_an_elastic_job() -> None:
    members = first_members(("a",), refusal="")
    story = running(1, membership=members)
    story(1, CanReform(rank=0))
    story(2, HostJoins(host="b", ranks=(1,)))
    story(3, MpirunExited(status=KILL))

    assert story.cause == Cause(reason=Reason.MPIRUN_ENDED)


def asks(rank: int) -> ReformAsked:
    return ReformAsked(rank=rank, generation=0, links_port=1, store_port=2)


def test_a_running_job_waits_forever() -> None:
    story = running()

    assert story.deadline == inf
    assert story(1e9, Tick()) == []
    assert story.phase is Phase.RUNNING


def test_an_instance_that_has_not_come_yet_is_waited_for() -> None:
    story = Story(JobState(num_instances=2))

    assert (
        story(
            0,
            Connected(rank=0),
            Started(rank=0, pid=200),
            exited(0),
            Clean(rank=0, left_behind=0),
        )
        == []
    )
    assert story.phase is Phase.RUNNING


# --- A job that may have more instances.


def test_a_job_is_stopped_for_more_hosts_as_after_a_failure() -> None:
    story = running()

    assert story(1, GROWTH) == ["SIGTERM to instances"]
    assert (story.cause, story.deadline) == (Cause(reason=Reason.GROWTH), 6)
    # The signal, or what another instance did because of it, is no failure.
    assert story(2, exited(0, TERM, by_itself=False), exited(1, 1 << 8)) == []
    assert story.cause == Cause(reason=Reason.GROWTH)
    assert story(6, Tick()) == ["kill instances"]


@pytest.mark.parametrize(
    "before",
    [
        pytest.param([exited(0)], id="a program has succeeded"),
        pytest.param([exited(0, 1 << 8)], id="a program has failed"),
        pytest.param([HostLost(host="n1", ranks=(1,), why="x")], id="a host is lost"),
    ],
)
def test_a_job_that_is_about_to_end_is_not_stopped_for_more_hosts(
    before: list[Event],
) -> None:
    story = running()
    story(1, *before)
    cause = story.cause

    assert story(1, GROWTH) == []
    assert story.cause == cause


def test_a_job_that_is_being_started_is_not_stopped_for_more_hosts() -> None:
    story = Story(JobState(num_instances=2))

    assert story(0, Connected(rank=0), Started(rank=0, pid=200), GROWTH) == []
    assert story.phase is Phase.RUNNING


def test_a_job_that_cannot_re_form_grows_although_its_instances_have_asked() -> None:
    story = running(
        membership=first_members(("a",) * 2, refusal="It has MPI.", least=1)
    )

    story(1, CanReform(rank=0))
    assert story(2, GROWTH) == ["SIGTERM to instances"]


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        (Interrupted(signal=INT), Cause(reason=Reason.INTERRUPTED, signal=INT)),
        (SlurmEndsJob(), Cause(reason=Reason.INTERRUPTED, signal=TERM)),
        (DevicesLost(sentence="x"), Cause(reason=Reason.DEVICES_LOST)),
        (OutputClosed(), Cause(reason=Reason.OUTPUT_CLOSED)),
    ],
)
def test_a_job_that_stops_to_grow_ends_for_another_reason_instead(
    event: Event, cause: Cause
) -> None:
    story = running()
    story(1, GROWTH)

    # The instances have got a signal, and still have the whole grace period.
    assert story(2, event) == []
    assert (story.cause, story.deadline) == (cause, 6)


def test_a_second_signal_kills_a_job_that_was_stopping_to_grow() -> None:
    story = running()
    story(1, GROWTH)

    assert story(2, Interrupted(signal=TERM), Interrupted(signal=TERM)) == [
        "kill instances"
    ]


@pytest.mark.parametrize(
    "event",
    [
        GuardLost(host="n0"),
        MpirunStarted(pid=100),
        Clean(rank=0, left_behind=3),
        WaitsInFinalize(rank=0),
    ],
)
def test_some_events_stop_nothing(event: Event) -> None:
    story = running()

    assert story(1, event) == []
    assert (story.phase, story.cause) == (Phase.RUNNING, None)


# --- The first failure.


@pytest.mark.parametrize("status", [1 << 8, 255 << 8, signal.SIGSEGV, signal.SIGKILL])
def test_the_first_failure_stops_the_others_and_gives_them_the_grace(
    status: int,
) -> None:
    story = running(3, grace=5)

    assert story(10, exited(1, status)) == ["SIGTERM to instances"]
    assert story.cause == Cause(reason=Reason.FAILED, rank=1)
    assert (story.phase, story.deadline) == (Phase.STOPPING, 15)
    assert story(11, Clean(rank=1, left_behind=0)) == []
    assert story(14.9, Tick()) == []
    assert story(15, Tick()) == ["kill instances"]
    assert (story.phase, story.deadline) == (Phase.KILLING, 16)
    assert story(15.1, Clean(rank=0, left_behind=0), Clean(rank=2, left_behind=0)) == [
        "release shims"
    ]
    assert (story.phase, story.deadline) == (Phase.LEAVING, 17.1)
    assert story(15.2, MpirunExited(status=0)) == []
    assert story.phase is Phase.OVER


def test_who_obeys_in_time_is_not_killed() -> None:
    story = running(grace=5)

    story(1, exited(0, 1 << 8), Clean(rank=0, left_behind=0))

    assert story(2, exited(1, TERM, by_itself=False), Clean(rank=1, left_behind=0)) == [
        "release shims"
    ]
    assert story.phase is Phase.LEAVING


def test_the_cause_stays_the_first_whatever_comes_later() -> None:
    story = running(3)

    story(1, exited(2, 7 << 8))
    story(
        1.1, exited(0, 1 << 8), ShimLost(rank=1), MpirunExited(status=1), OutputClosed()
    )

    assert story.cause == Cause(reason=Reason.FAILED, rank=2)


def test_an_end_that_poprun_or_mpirun_brought_about_is_no_failure() -> None:
    story = running()

    assert story(1, exited(0, TERM, by_itself=False)) == []
    assert (story.phase, story.cause) == (Phase.RUNNING, None)


def test_keep_going_lets_the_others_finish() -> None:
    story = running(keep_going=True)

    assert story(1, exited(0, 7 << 8), Clean(rank=0, left_behind=0)) == []
    assert (story.phase, story.cause) == (Phase.RUNNING, None)
    assert story(2, exited(1), Clean(rank=1, left_behind=0)) == ["release shims"]
    assert story.phase is Phase.LEAVING


def test_an_instance_that_failed_and_waits_in_finalize_stops_the_job() -> None:
    story = running()

    assert story(1, FailedInFinalize(rank=1, status=3 << 8, at_ns=0)) == [
        "SIGTERM to instances"
    ]
    assert story.cause == Cause(reason=Reason.FAILED, rank=1)
    assert story.deadline == 6


def test_with_keep_going_a_wait_in_finalize_stops_nothing() -> None:
    story = running(keep_going=True)

    assert story(1, FailedInFinalize(rank=1, status=3 << 8, at_ns=0)) == []
    assert story.phase is Phase.RUNNING


def test_no_grace_kills_at_the_next_tick() -> None:
    story = running(grace=0)

    assert story(1, exited(0, 1 << 8)) == ["SIGTERM to instances"]
    assert story(1, Tick()) == ["kill instances"]


def test_a_program_that_cannot_be_started_stops_the_others() -> None:
    story = running(grace=5)
    story.state = replace(story.state, started=frozenset({0}))

    assert story(1, Refused(rank=1, errno=2, tried="/bin/x")) == [
        "SIGTERM to instances"
    ]
    assert story.cause == Cause(reason=Reason.REFUSED, rank=1)
    assert (story.phase, story.deadline) == (Phase.STOPPING, 6)
    # Of an instance that never was, nothing is left.
    assert story(2, exited(0, TERM, by_itself=False), Clean(rank=0, left_behind=0)) == [
        "release shims"
    ]


def test_a_program_that_no_instance_can_start_is_over_at_once() -> None:
    story = Story(JobState(num_instances=1))

    assert story(0, Connected(rank=0), Refused(rank=0, errno=2, tried="/bin/x")) == [
        "SIGTERM to instances",
        "release shims",
    ]
    assert story.phase is Phase.LEAVING


# --- Signals to poprun.


def test_ctrl_c_is_passed_on_as_it_came() -> None:
    story = running(grace=5)

    assert story(1, Interrupted(signal=INT)) == ["SIGINT to instances"]
    assert story.cause == Cause(reason=Reason.INTERRUPTED, signal=INT)
    assert (story.phase, story.deadline) == (Phase.STOPPING, 6)


@pytest.mark.parametrize("number", [TERM, signal.SIGHUP])
def test_other_signals_that_end_poprun_reach_the_instances_as_sigterm(
    number: int,
) -> None:
    story = running()

    assert story(1, Interrupted(signal=number)) == ["SIGTERM to instances"]
    assert story.cause == Cause(reason=Reason.INTERRUPTED, signal=number)


def test_the_second_ctrl_c_kills_and_the_third_gains_nothing() -> None:
    story = running(grace=60)
    story(1, Interrupted(signal=INT))

    assert story(2, Interrupted(signal=INT)) == ["kill instances"]
    assert (story.phase, story.deadline) == (Phase.KILLING, 3)
    # Above all it puts nothing off.
    assert story(2.5, Interrupted(signal=INT)) == []
    assert (story.phase, story.deadline) == (Phase.KILLING, 3)


def test_ctrl_c_when_all_is_over_is_too_late() -> None:
    story = running(grace=0)
    story(1, Interrupted(signal=INT), Tick())
    story(2, Tick())
    story(3, Tick())

    assert story(4, Interrupted(signal=INT)) == []
    assert story.phase is Phase.OVER


def test_ctrl_c_after_a_failure_kills() -> None:
    story = running(grace=60)
    story(1, exited(0, 1 << 8))

    assert story(2, Interrupted(signal=INT)) == ["kill instances"]
    assert story.cause == Cause(reason=Reason.FAILED, rank=0)


def test_ctrl_c_does_not_wait_for_an_mpirun_that_should_be_gone() -> None:
    story = running(1)
    story(1, exited(0), Clean(rank=0, left_behind=0))

    assert story(1.1, Interrupted(signal=INT)) == ["SIGKILL to mpirun"]
    assert story.phase is Phase.ENDING
    assert story(1.2, MpirunExited(status=KILL)) == []
    assert story.phase is Phase.OVER


def test_ctrl_c_before_the_first_instance_ends_mpirun() -> None:
    story = Story(JobState(num_instances=2))
    story(0, MpirunStarted(pid=100))

    assert story(0.1, Interrupted(signal=INT)) == [
        "SIGINT to instances",
        "release shims",
        "SIGTERM to mpirun",
    ]
    assert (story.phase, story.deadline) == (Phase.LEAVING, 5.1)


# --- Slurm sends SIGTERM to all processes, which get it in any order.


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(Interrupted(signal=TERM), id="poprun"),
        pytest.param(SlurmEndsJob(), id="another host"),
        pytest.param(exited(0, TERM), id="an instance"),
        pytest.param(ShimLost(rank=0), id="a shim"),
    ],
)
def test_the_signal_that_ends_a_job_of_slurm_leaves_it_its_grace(first: Event) -> None:
    story = running(grace=60, is_in_slurm=True)

    signals = story(1, first)
    rest = [Interrupted(signal=TERM)] if not isinstance(first, Interrupted) else []
    signals += story(1.1, exited(1, TERM, by_itself=False), SlurmEndsJob(), *rest)
    signals += story(1.2, Tick())
    assert signals == ["SIGTERM to instances"]
    assert (story.phase, story.deadline) == (Phase.STOPPING, 61)
    assert story.cause == Cause(reason=Reason.INTERRUPTED, signal=TERM)
    assert story(2, Interrupted(signal=TERM)) == ["kill instances"]


@pytest.mark.parametrize("last", [Interrupted(signal=TERM), SlurmEndsJob()])
@pytest.mark.parametrize(
    ("ends", "phase"),
    [
        pytest.param([exited(0, TERM)], Phase.STOPPING, id="stopping"),
        pytest.param(
            [
                exited(0, TERM),
                exited(1, TERM),
                Clean(rank=0, left_behind=0),
                Clean(rank=1, left_behind=0),
            ],
            Phase.LEAVING,
            id="all have ended",
        ),
        pytest.param(
            [
                exited(0, TERM, by_itself=False),
                Clean(rank=0, left_behind=0),
                exited(1),
                Clean(rank=1, left_behind=0),
            ],
            Phase.LEAVING,
            id="all have ended, by signals only",
        ),
        pytest.param([ShimLost(rank=0), ShimLost(rank=1)], Phase.LEAVING, id="shims"),
        pytest.param([MpirunExited(status=0)], Phase.STOPPING, id="mpirun"),
    ],
)
def test_what_ends_just_before_slurm_s_signal_comes_has_ended_by_it(
    ends: list[Event], phase: Phase, last: Event
) -> None:
    story = running(grace=60, is_in_slurm=True)

    story(1, *ends)
    assert story.phase is phase
    assert story(1.19, last) == []
    assert story.phase is phase
    assert story.cause == Cause(reason=Reason.INTERRUPTED, signal=TERM)


@pytest.mark.parametrize("last", [Interrupted(signal=TERM), SlurmEndsJob()])
def test_slurm_s_signal_does_not_make_a_job_fail_that_has_succeeded(
    last: Event,
) -> None:
    story = running(is_in_slurm=True)

    story(
        1,
        exited(0),
        exited(1),
        Clean(rank=0, left_behind=0),
        Clean(rank=1, left_behind=0),
        last,
    )

    assert story.cause is None


@pytest.mark.parametrize("last", [Interrupted(signal=TERM), SlurmEndsJob()])
def test_a_failure_long_before_slurm_s_signal_stays_the_cause(last: Event) -> None:
    story = running(keep_going=True, is_in_slurm=True)

    story(1, exited(0, 1 << 8), Clean(rank=0, left_behind=0))
    story(9, exited(1), Clean(rank=1, left_behind=0))
    story(9.1, last)

    assert story.cause is None


def test_an_mpirun_that_does_not_get_sigterm_is_killed_and_not_the_cause() -> None:
    story = Story(JobState(num_instances=2, is_in_slurm=True))
    story(0, MpirunStarted(pid=100), Connected(rank=0), Started(rank=0, pid=200))

    assert story(1, ShimLost(rank=0)) == [
        "SIGTERM to instances",
        "release shims",
        "SIGKILL to mpirun",
    ]
    assert story.state.mpirun_killed


def test_a_failure_before_slurm_ends_the_job_is_the_cause() -> None:
    story = running(grace=60, is_in_slurm=True)

    assert story(1, exited(0, 1 << 8)) == ["SIGTERM to instances"]
    assert story(3, Interrupted(signal=TERM)) == []
    assert story.cause == Cause(reason=Reason.FAILED, rank=0)
    assert story.deadline == 61


def test_slurm_s_own_signal_reaches_the_instances_first() -> None:
    story = running(grace=60, is_in_slurm=True)

    assert story(1, Interrupted(signal=TERM)) == []
    assert story.deadline == 1.2
    assert story(1.2, Tick()) == ["SIGTERM to instances"]
    assert story.deadline == 61


def test_an_instance_that_slurm_ends_is_no_failure() -> None:
    story = running(is_in_slurm=True)

    assert story(1, exited(0, TERM, by_itself=False)) == []
    assert story(1.1, Interrupted(signal=TERM)) == []
    assert story.cause == Cause(reason=Reason.INTERRUPTED, signal=TERM)


def test_a_signal_after_ctrl_c_kills_in_slurm_too() -> None:
    story = running(grace=60, is_in_slurm=True)
    story(1, Interrupted(signal=INT))

    assert story(2, Interrupted(signal=TERM)) == ["kill instances"]


# --- mpirun dies, in each phase.


def test_mpirun_that_dies_takes_the_job_with_it_and_grace_is_a_second() -> None:
    story = running(grace=5)

    assert story(10, MpirunExited(status=KILL)) == ["SIGTERM to instances"]
    assert story.cause == Cause(reason=Reason.MPIRUN_ENDED)
    assert (story.phase, story.deadline) == (Phase.STOPPING, 11)
    assert story(11, Tick()) == ["kill instances"]
    assert story(11.1, Clean(rank=0, left_behind=0), Clean(rank=1, left_behind=0)) == [
        "release shims"
    ]
    assert story.phase is Phase.OVER


def test_a_grace_below_a_second_counts_when_machinery_dies() -> None:
    story = running(grace=0.25)

    story(10, MpirunExited(status=KILL))

    assert story.deadline == 10.25


def test_mpirun_that_dies_before_the_first_instance_ends_the_job() -> None:
    story = Story(JobState(num_instances=2))

    assert story(1, MpirunStarted(pid=100), MpirunExited(status=1 << 8)) == [
        "release shims"
    ]
    assert (story.phase, story.cause) == (Phase.OVER, None)


def test_mpirun_that_dies_while_the_job_stops_shortens_the_grace() -> None:
    story = running(grace=60)
    story(1, exited(0, 1 << 8))

    assert story(2, MpirunExited(status=KILL)) == []
    assert (story.phase, story.deadline) == (Phase.STOPPING, 3)
    assert story.cause == Cause(reason=Reason.FAILED, rank=0)


def test_mpirun_that_dies_late_in_the_grace_does_not_lengthen_it() -> None:
    story = running(grace=5)
    story(1, exited(0, 1 << 8))

    story(5.5, MpirunExited(status=KILL))

    assert story.deadline == 6


def test_mpirun_that_dies_while_instances_are_killed_changes_nothing() -> None:
    story = running(grace=0)
    story(1, Interrupted(signal=INT), Tick())

    assert story(1.5, MpirunExited(status=KILL)) == []
    assert (story.phase, story.deadline) == (Phase.KILLING, 2)
    assert story(1.6, Clean(rank=0, left_behind=0), Clean(rank=1, left_behind=0)) == [
        "release shims"
    ]
    assert story.phase is Phase.OVER


# --- A shim is lost.


def test_a_lost_shim_stops_the_job_within_a_second() -> None:
    story = running(grace=5)

    assert story(10, ShimLost(rank=1)) == ["SIGTERM to instances"]
    assert story.cause == Cause(reason=Reason.SHIM_LOST, rank=1)
    assert (story.phase, story.deadline) == (Phase.STOPPING, 11)
    assert story(10.5, Clean(rank=0, left_behind=0)) == ["release shims"]


@pytest.mark.parametrize("grace", [0, 60])
def test_a_shim_that_is_lost_while_the_job_stops_counts_as_gone(
    grace: float,
) -> None:
    story = running(grace=grace)
    story(1, Interrupted(signal=INT), Tick())

    assert story(1.1, ShimLost(rank=0), ShimLost(rank=1)) == ["release shims"]
    assert story.phase is Phase.LEAVING
    assert story.cause == Cause(reason=Reason.INTERRUPTED, signal=INT)


# --- Time runs out.


def test_a_job_that_takes_too_long_is_stopped() -> None:
    story = running(ends_by=100, grace=5)

    assert story.deadline == 100
    assert story(99.9, Tick()) == []
    assert story(100, Tick()) == ["show stacks"]
    assert story.cause == Cause(reason=Reason.TIMEOUT)
    assert (story.phase, story.deadline) == (Phase.TRACING, 100 + STACKS_S)
    assert story(101, StacksShown()) == ["SIGTERM to instances"]
    assert (story.phase, story.deadline) == (Phase.STOPPING, 106)


def test_stacks_that_take_too_long_do_not_keep_a_job() -> None:
    story = running(ends_by=100, grace=5)
    story(100, Tick())

    ends = 100 + STACKS_S
    assert story(ends, Tick()) == ["SIGTERM to instances"]
    assert (story.phase, story.deadline) == (Phase.STOPPING, ends + 5)
    assert story(ends + 1, StacksShown()) == []


def test_sigquit_shows_stacks_and_a_signal_meanwhile_kills() -> None:
    story = running()

    assert story(1, Interrupted(signal=signal.SIGQUIT)) == ["show stacks"]
    assert story.cause == Cause(reason=Reason.INTERRUPTED, signal=signal.SIGQUIT)
    assert story(1.1, Interrupted(signal=INT)) == ["kill instances"]
    assert story(1.2, StacksShown()) == []


def test_an_mpirun_that_dies_while_stacks_are_shown_stops_the_job() -> None:
    story = running(ends_by=100, grace=5)
    story(100, Tick())

    assert story(101, MpirunExited(status=9)) == ["SIGTERM to instances"]
    assert (story.phase, story.deadline) == (Phase.STOPPING, 102)
    assert story.cause == Cause(reason=Reason.TIMEOUT)


def test_a_job_that_does_not_start_in_time_is_stopped() -> None:
    story = Story(JobState(num_instances=2, starts_by=30, ends_by=100, grace=5))
    story(1, Connected(rank=0), Started(rank=0, pid=200))

    assert story.deadline == 30
    assert story(30, Tick()) == ["SIGTERM to instances"]
    assert story.cause == Cause(reason=Reason.START_TIMEOUT)
    assert story.deadline == 31
    assert story(
        30.1, exited(0, TERM, by_itself=False), Clean(rank=0, left_behind=0)
    ) == [
        "release shims",
        "SIGTERM to mpirun",
    ]


def test_the_time_to_start_is_over_when_all_have_started() -> None:
    story = running(starts_by=30, ends_by=100)

    assert story.deadline == 100
    assert story(31, Tick()) == []


def test_when_both_times_are_up_the_whole_job_took_too_long() -> None:
    story = Story(JobState(num_instances=1, starts_by=30, ends_by=30))

    story(30, Tick())

    assert story.cause == Cause(reason=Reason.TIMEOUT)


def test_time_that_runs_out_while_the_job_stops_changes_nothing() -> None:
    story = running(ends_by=10, grace=5)
    story(9, Interrupted(signal=INT))

    assert story(10, Tick()) == []
    assert (story.phase, story.deadline) == (Phase.STOPPING, 14)
    assert story.cause == Cause(reason=Reason.INTERRUPTED, signal=INT)


# --- The IPUs are another job's.


def test_a_job_that_has_lost_its_ipus_is_stopped() -> None:
    story = running(grace=5)

    assert story(1, DevicesLost(sentence="Its lease has ended.")) == [
        "SIGTERM to instances"
    ]
    assert story.cause == Cause(reason=Reason.DEVICES_LOST)
    assert story.deadline == 6


# --- The output has no reader.


def test_a_job_whose_output_has_no_reader_is_stopped_within_a_second() -> None:
    story = running(grace=5)

    assert story(1, OutputClosed()) == ["SIGTERM to instances"]
    assert story.cause == Cause(reason=Reason.OUTPUT_CLOSED)
    assert story.deadline == 2
    # It is told again at every turn.
    assert story(1.1, OutputClosed(), OutputClosed()) == []
    assert story.deadline == 2


# --- Who comes late.


def test_an_instance_that_comes_after_the_stop_is_waited_for_like_any_other() -> None:
    story = Story(JobState(num_instances=2))
    story(0, Connected(rank=0), Started(rank=0, pid=200))
    story(1, exited(0, 1 << 8))

    story(1.1, Connected(rank=1))
    assert story(1.2, Clean(rank=0, left_behind=0)) == []
    assert story.phase is Phase.STOPPING
    assert story(1.3, Clean(rank=1, left_behind=0)) == ["release shims"]
    assert story.phase is Phase.LEAVING


def test_an_instance_that_starts_after_the_stop_costs_the_others_no_grace() -> None:
    story = Story(JobState(num_instances=3, grace=5))
    story(
        0,
        Connected(rank=0),
        Started(rank=0, pid=200),
        Connected(rank=1),
        Started(rank=1, pid=201),
    )
    story(0, Connected(rank=2))
    story(1, exited(0, 1 << 8))

    # Its shim starts it and then reads that it is to stop, in this order.
    assert story(1.1, Started(rank=2, pid=202)) == []
    assert (story.phase, story.deadline) == (Phase.STOPPING, 6)


# --- What does not end by itself.


def test_instances_that_outlive_the_kill_are_left_to_the_guard() -> None:
    story = running(grace=0)
    story(1, Interrupted(signal=INT), Tick())

    assert story(2, Tick()) == ["SIGKILL to mpirun"]
    assert (story.phase, story.deadline) == (Phase.ENDING, 3)
    assert story(3, Tick()) == []
    assert (story.phase, story.deadline) == (Phase.OVER, inf)


def test_mpirun_that_is_told_to_end_has_more_time_for_it() -> None:
    story = Story(JobState(num_instances=2))
    story(0, MpirunStarted(pid=100), Connected(rank=0), Started(rank=0, pid=200))
    assert story(
        0, Connected(rank=0), exited(0, KILL), Clean(rank=0, left_behind=0)
    ) == [
        "SIGTERM to instances",
        "release shims",
        "SIGTERM to mpirun",
    ]

    assert story(0.5, Connected(rank=1), ShimLeft(rank=1)) == []
    assert story(2.6, Tick()) == []
    assert (story.phase, story.deadline) == (Phase.LEAVING, 5)
    assert story(5, Tick()) == ["SIGKILL to mpirun"]


def test_mpirun_that_hangs_after_its_instances_have_ended_is_killed() -> None:
    story = running(1)
    story(10, exited(0), Clean(rank=0, left_behind=0))

    assert story(12, Tick()) == ["SIGKILL to mpirun"]
    assert (story.phase, story.deadline) == (Phase.ENDING, 13)
    assert story(12.1, MpirunExited(status=KILL)) == []
    assert story.phase is Phase.OVER
    # Only now is it known that the job went well, and what was wrong with mpirun.
    assert (story.cause, story.state.mpirun_hung) == (None, True)


def test_mpirun_has_time_for_each_of_many_instances_to_leave() -> None:
    story = running(160)

    story(10, *(Clean(rank=rank, left_behind=0) for rank in range(160)))
    assert (story.phase, story.deadline) == (Phase.LEAVING, 18)

    assert story(17, ShimLeft(rank=0)) == []
    assert (story.phase, story.deadline) == (Phase.LEAVING, 25)
    assert story(25, Tick()) == ["SIGKILL to mpirun"]
    assert story(25.1, ShimLeft(rank=1)) == []
    assert (story.phase, story.deadline) == (Phase.ENDING, 26)


# --- Whatever happens.


def anything(num_instances: int) -> st.SearchStrategy[Event]:
    ranks = st.integers(0, num_instances - 1)
    statuses = st.sampled_from([0, 1 << 8, signal.SIGKILL])
    return st.one_of(
        st.builds(Connected, rank=ranks),
        st.builds(Started, rank=ranks, pid=st.just(200)),
        st.builds(Refused, rank=ranks, errno=st.just(2), tried=st.just("x")),
        st.builds(exited, ranks, statuses, by_itself=st.booleans()),
        st.builds(
            FailedInFinalize, rank=ranks, status=st.just(1 << 8), at_ns=st.just(0)
        ),
        st.builds(Clean, rank=ranks, left_behind=st.integers(0, 2)),
        st.builds(ShimLost, rank=ranks),
        st.builds(ShimLeft, rank=ranks),
        st.builds(Interrupted, signal=st.sampled_from([INT, TERM, signal.SIGQUIT])),
        st.builds(MpirunExited, status=statuses),
        st.just(GROWTH),
        st.sampled_from(
            [MpirunStarted(pid=100), GuardLost(host="n0"), OutputClosed(), Tick()]
        ),
        st.just(StacksShown()),
    )


courses = st.builds(
    JobState,
    num_instances=st.just(3),
    grace=st.sampled_from([0, 0.5, 5]),
    keep_going=st.booleans(),
    ends_by=st.just(20.0),
    starts_by=st.sampled_from([5.0, inf]),
)
histories = st.lists(st.tuples(st.floats(0, 2), anything(3)), max_size=25)


def told(
    state: JobState, history: list[tuple[float, Event]]
) -> Iterator[tuple[JobState, list[Action | Answer]]]:
    """Let everything happen, each event some time after the one before."""
    now = 0.0
    for wait, event in history:
        now += wait
        state, actions = decide(state, event, now)
        yield state, actions
    # Then nothing happens any more but that time passes.
    while state.phase is not Phase.OVER:
        now = max(now, state.deadline)
        state, actions = decide(state, Tick(), now)
        yield state, actions


@given(courses, histories)
def test_every_job_comes_to_its_end_if_only_time_passes(
    state: JobState, history: list[tuple[float, Event]]
) -> None:
    steps = list(told(state, history))

    # At the end every tick is a step on: from RUNNING there are six at most.
    assert len(steps) <= len(history) + 6


@given(courses, histories)
def test_no_job_goes_back(state: JobState, history: list[tuple[float, Event]]) -> None:
    phases = [Phase.RUNNING, *(step.phase for step, _ in told(state, history))]

    assert all(before <= after for before, after in pairwise(phases))


@given(courses, histories)
def test_a_job_that_stops_has_one_cause_and_keeps_it(
    state: JobState, history: list[tuple[float, Event]]
) -> None:
    causes = [step.cause for step, _ in told(state, history)]
    known = [cause for cause in causes if cause is not None]

    assert len(set(known)) <= 1
    assert None not in causes[len(causes) - len(known) :]
    assert all(
        step.cause is not None
        for step, _ in told(state, history)
        if step.phase in (Phase.TRACING, Phase.STOPPING, Phase.KILLING)
    )


@given(courses, histories)
def test_shims_are_released_once_and_only_by_what_is_left_of_the_job(
    state: JobState, history: list[tuple[float, Event]]
) -> None:
    steps = list(told(state, history))
    released = [
        step for step, actions in steps if TellHosts(kind=protocol.RELEASE) in actions
    ]

    assert len(released) <= 1
    assert all(step.gone >= step.connected for step in released)


# --- An instance with a debugger.


def test_a_failure_does_not_stop_the_instance_that_is_debugged() -> None:
    story = running(debugged=1)

    assert story(1, exited(0, 256)) == []
    assert story(2, Clean(rank=0, left_behind=0)) == []
    assert story.phase is Phase.RUNNING
    assert story(3, exited(1, 0)) == ["SIGTERM to instances"]
    assert story.cause == Cause(reason=Reason.FAILED, rank=0)


def test_a_failure_of_the_instance_that_is_debugged_stops_the_others() -> None:
    story = running(debugged=1)

    assert story(1, exited(1, 256)) == ["SIGTERM to instances"]
    assert story.cause == Cause(reason=Reason.FAILED, rank=1)


def test_ctrl_c_is_for_the_debugger_until_no_prompt_follows() -> None:
    story = running(debugged=1)
    assert not story.state.debugger_takes_interrupt

    story(1, DebuggerReady(rank=1))
    assert story.state.debugger_takes_interrupt
    assert story(2, DebuggerInterrupted(rank=1, at_prompt=False)) == ["interrupt 1"]
    assert not story.state.debugger_takes_interrupt
    story(3, PromptShown(rank=1))
    assert story(4, DebuggerInterrupted(rank=1, at_prompt=True)) == ["interrupt 1"]
    assert story.state.debugger_takes_interrupt
    story(5, PromptOver(rank=1))
    assert story.state.debugger_takes_interrupt
    story(6, exited(1))
    assert not story.state.debugger_takes_interrupt


def test_a_job_with_a_debugger_that_is_interrupted_gets_sigterm() -> None:
    story = running(debugged=1)
    story(1, DebuggerReady(rank=1))

    # SIGINT would start the debugger.
    assert story(2, Interrupted(signal=INT)) == ["SIGTERM to instances"]


def test_the_time_at_a_prompt_does_not_count() -> None:
    story = running(debugged=1, ends_by=10.0, timeout=10.0)
    story(4, PromptShown(rank=1))

    assert story.deadline == inf
    assert story(50, Tick()) == []
    story(54, PromptOver(rank=1))
    assert story.deadline == 60.0
    story(55, PromptShown(rank=1))
    assert story(56, exited(1, 256)) == ["SIGTERM to instances"]


def test_the_time_at_a_prompt_does_not_count_for_an_instance_that_ends_there() -> None:
    story = running(debugged=1, ends_by=10.0, timeout=10.0)
    story(4, PromptShown(rank=1))
    story(53, PromptOver(rank=0))  # another instance's

    assert story.deadline == inf
    assert story(54, exited(1)) == []
    assert story.deadline == 60.0


@pytest.mark.parametrize(
    "event", [PromptShown(rank=0), DebuggerReady(rank=0), PromptOver(rank=1)]
)
def test_what_is_not_of_the_debugged_instance_changes_nothing(event: Event) -> None:
    story = running(debugged=1)
    before = story.state

    assert story(1, event) == []
    assert story.state == before
