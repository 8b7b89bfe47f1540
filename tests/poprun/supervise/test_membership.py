"""Who belongs to an elastic job, told as events and answers."""

import signal
from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poprun.plan.values import NOT_ELASTIC
from poprun.supervise import membership
from poprun.supervise.membership import (
    ENDING,
    Answer,
    BeginGeneration,
    KillInstance,
    Membership,
    StartAgain,
    SuspectHosts,
    TellMember,
    first_members,
)
from poprun.wire import protocol
from poprun.wire.events import (
    CanReform,
    Clean,
    Event,
    Exited,
    HostJoins,
    HostLost,
    ReformAsked,
    ReformEnded,
    ShimLost,
    Tick,
)

NAMES = {
    protocol.ELASTIC_KNOWN: "known",
    protocol.MEMBERS_CHANGE: "change",
    protocol.REFORM_REFUSED: "refused",
}


def exited(rank: int, status: int = 0) -> Exited:
    return Exited(
        rank=rank,
        status=status,
        at_ns=0,
        user_s=0.0,
        system_s=0.0,
        peak_kib=0,
        by_itself=True,
    )


def killed(rank: int) -> Exited:
    return exited(rank, signal.SIGKILL)


def asks(rank: int, generation: int = 0) -> ReformAsked:
    return ReformAsked(
        rank=rank, generation=generation, links_port=5000 + rank, store_port=6000 + rank
    )


def words(answer: Answer) -> str:
    match answer:
        case TellMember(rank=rank, kind=protocol.MEMBERS_CHANGE, value=value):
            return f"{value['kind']} to {rank}"
        case TellMember(rank=rank, kind=kind):
            return f"{NAMES[kind]} to {rank}"
        case BeginGeneration(generation=number, members=members):
            return f"generation {number}: {', '.join(map(str, members))}"
        case StartAgain(rank=rank):
            return f"start {rank}"
        case KillInstance(rank=rank):
            return f"kill {rank}"


class Story:
    """One job, event by event."""

    def __init__(self, state: Membership) -> None:
        self.state = state
        self.answers: list[Answer] = []
        # The instances whose hosts are suspected, by request.
        self.suspected: list[tuple[int, ...]] = []

    def __call__(self, now: float, *events: Event) -> list[str]:
        """Let events happen, and return the answers to them."""
        self.answers = []
        for event in events:
            self.state, answers = membership.decide(self.state, event, now)
            hosts = [a for a in answers if isinstance(a, SuspectHosts)]
            self.suspected += [answer.ranks for answer in hosts]
            self.answers += [a for a in answers if a not in hosts]
        return [words(answer) for answer in self.answers]


def elastic(size: int = 4, **values: object) -> Story:
    """Return a job all of whose instances can re-form."""
    story = Story(first_members(size, **{"refusal": "", "least": 2, **values}))
    for rank in range(size):
        assert story(0, CanReform(rank=rank)) == [f"known to {rank}"]
    return story


def test_the_living_form_a_generation_when_all_of_them_have_asked() -> None:
    story = elastic(hosts=("a", "a", "b", "b"))

    assert story(1, killed(1)) == ["lost to 0", "lost to 2", "lost to 3"]
    assert story.state.goes_on
    assert story(2, asks(0), asks(3)) == []
    assert story(3.5, asks(2)) == ["generation 1: 0, 2, 3"]
    [begun] = story.answers
    assert begun == BeginGeneration(
        generation=1,
        members=(0, 2, 3),
        ports={0: (5000, 6000), 2: (5002, 6002), 3: (5003, 6003)},
        why="Instance 1 (a) was killed by SIGKILL.",
        lost=(1,),
        added=(),
        seconds=2.5,
    )


def test_a_round_goes_on_without_one_that_dies_in_it() -> None:
    story = elastic()

    story(1, killed(1), asks(0), asks(2))
    # 0 and 2 know that something has changed: they have asked.
    assert story(2, killed(3)) == ["generation 1: 0, 2"]


def test_hosts_of_members_that_have_not_asked_are_suspected_to_be_lost() -> None:
    story = elastic(4, hosts=("a", "a", "b", "b"), restarts_left=1)

    story(1, killed(1), asks(0), asks(2), asks(3))
    # An instance that joins has left no other one.
    story(2, Clean(rank=1, left_behind=0))
    story(3, Tick())
    assert story(3, asks(1, 1)) == ["added to 0", "added to 2", "added to 3"]

    assert story.suspected == [(2, 3), (3,)]


def test_a_request_of_a_process_that_has_ended_does_not_count() -> None:
    story = elastic(3)

    assert story(1, asks(0), asks(1), ReformEnded(rank=1), asks(2)) == []
    assert story(1, killed(1)) == ["generation 1: 0, 2"]


def test_a_round_does_not_wait_for_a_wrapper_whose_process_has_ended() -> None:
    story = elastic(restarts_left=1)

    assert story(1, ReformEnded(rank=1), asks(0), asks(2)) == []
    assert story(2, asks(3)) == []
    assert story.state.deadline == 3
    assert story(3, Tick()) == ["generation 1: 0, 2, 3"]
    [begun] = [a for a in story.answers if isinstance(a, BeginGeneration)]
    assert begun.why == "The process of instance 1 that used popdist has ended."
    assert begun.lost == (1,)
    # The wrapper ends, and is started again.
    assert story(60, exited(1, 256)) == []
    assert story(60, Clean(rank=1, left_behind=0)) == []
    assert story(61, Tick()) == ["start 1"]
    assert story.state.deadline == inf


def test_a_wrapper_that_succeeds_later_does_not_end_the_job() -> None:
    story = elastic(restarts_left=1)

    story(1, ReformEnded(rank=1), asks(0), asks(2), asks(3))
    story(3, Tick())
    story(60, exited(1))

    assert story(70, killed(3), asks(0, 1), asks(2, 1))[-1] == "generation 2: 0, 2"
    assert story.state.starts == {3: inf}


def test_another_process_of_a_wrapper_that_was_left_behind_is_refused() -> None:
    story = elastic()
    story(1, ReformEnded(rank=1), asks(0), asks(2), asks(3))
    assert story(3, Tick()) == ["generation 1: 0, 2, 3"]

    assert story(4, CanReform(rank=1)) == ["known to 1"]
    assert story(4, asks(1, 1)) == ["refused to 1"]
    [refusal] = story.answers
    assert isinstance(refusal, TellMember)
    assert refusal.value.startswith("The others have left instance 1 behind, because")


def test_wrappers_go_on_after_the_processes_of_a_job_that_is_done() -> None:
    story = elastic(size=2)

    story(1, ReformEnded(rank=0), ReformEnded(rank=1))
    assert story(3, Tick()) == []
    assert story(60, exited(0), exited(1)) == []


def test_a_wrapper_that_ends_in_time_has_failed_as_without_one() -> None:
    story = elastic()

    assert story(1, ReformEnded(rank=1), killed(1)) == [
        "lost to 0",
        "lost to 2",
        "lost to 3",
    ]
    assert story.state.deadline == inf


def test_generations_follow_each_other() -> None:
    story = elastic()

    story(1, killed(0), *map(asks, (1, 2, 3)))
    assert story(2, asks(1, 1), killed(2)) == ["lost to 3"]
    assert story(2, asks(3, 1)) == ["generation 2: 1, 3"]
    assert story(3, asks(3, 1)) == ["refused to 3"]
    [refusal] = story.answers
    assert isinstance(refusal, TellMember)
    assert refusal.value == "Instance 3 leaves generation 1, but the present one is 2."


def test_members_that_all_ask_re_form_without_a_loss() -> None:
    story = elastic(2)

    assert story(1, asks(1), asks(0)) == ["generation 1: 0, 1"]
    [begun] = story.answers
    assert isinstance(begun, BeginGeneration)
    assert begun.why == "The program has asked for it."


@pytest.mark.parametrize(
    ("events", "goes_on"),
    [
        ([killed(0)], True),
        ([killed(0), killed(3)], True),
        ([killed(0), killed(3), killed(1)], False),
        ([HostLost(host="b", ranks=(2, 3), why="it is gone")], True),
        ([HostLost(host="b", ranks=(1, 2, 3), why="it is gone")], False),
        ([ShimLost(rank=1)], True),
        # It has left for good, and 2 of 4 are not enough to lose one.
        ([exited(0), exited(1), killed(2)], False),
    ],
)
def test_the_job_goes_on_while_enough_are_left(
    events: Sequence[Event], *, goes_on: bool
) -> None:
    story = elastic()

    story(1, *events)

    assert story.state.goes_on is goes_on


def test_the_job_does_not_go_on_if_one_that_is_left_cannot_re_form() -> None:
    story = Story(first_members(3, refusal="", least=1))
    story(0, CanReform(rank=0), CanReform(rank=1))

    assert story(1, killed(1)) == []
    assert not story.state.goes_on


def test_a_job_that_is_not_elastic_says_why() -> None:
    story = Story(first_members(2, refusal=NOT_ELASTIC))

    assert story(0, CanReform(rank=1)) == ["known to 1"]
    [known] = story.answers
    assert isinstance(known, TellMember)
    assert known.value == {"generation": 0, "refusal": NOT_ELASTIC}
    assert story(1, asks(1), killed(0)) == ["refused to 1"]
    assert not story.state.goes_on
    assert story.state.survived(was_stopped=False) == []


def test_those_that_ask_when_too_few_are_left_are_refused() -> None:
    story = elastic(3)

    story(1, exited(0), exited(1))
    assert story(2, asks(2)) == ["refused to 2"]
    [refusal] = story.answers
    assert isinstance(refusal, TellMember)
    assert refusal.value == (
        "Only 1 instance of the job is left, but it needs at least 2 instances: see "
        "--min-instances and --nnodes."
    )


def test_the_end_of_a_job_is_the_answer_to_all_that_wait() -> None:
    story = elastic(3)

    story(1, asks(0))
    story.state, answers = membership.end(story.state)
    assert answers == [
        TellMember(rank=0, kind=protocol.REFORM_REFUSED, value=ENDING),
    ]
    assert story(2, asks(1)) == ["refused to 1"]


# --- Instances that are started again.


def test_an_instance_is_started_again_beside_the_others() -> None:
    story = elastic(3, restarts_left=1)

    story(1, killed(1))
    assert story(1, asks(0), asks(2)) == ["generation 1: 0, 2"]
    assert story(2, Clean(rank=1, left_behind=0)) == []
    assert story.state.deadline == 2.25
    assert story(2.25, Tick()) == ["start 1"]
    assert (story.state.restarts_left, story.state.num_restarts) == (0, 1)
    # The others are told once it is ready, so they do not wait for its start.
    assert story(3, CanReform(rank=1)) == ["known to 1"]
    assert story(3, asks(1, 1)) == ["added to 0", "added to 2"]
    assert story(4, asks(2, 1)) == []
    assert story(4, asks(0, 1)) == ["generation 2: 0, 1, 2"]
    [begun] = story.answers
    assert isinstance(begun, BeginGeneration)
    assert (begun.added, begun.why) == ((1,), "Instance 1 was started again.")
    # There is no restart left.
    story(5, killed(1))
    assert story(6, Clean(rank=1, left_behind=0), Tick()) == []


def test_a_round_does_not_wait_for_one_that_is_being_started() -> None:
    story = elastic(4, restarts_left=1)

    story(1, killed(1), Clean(rank=1, left_behind=0))
    assert story(2, Tick()) == ["start 1"]
    assert story(2, asks(0), asks(2), asks(3)) == ["generation 1: 0, 2, 3"]


def test_a_round_waits_for_one_that_is_being_started_if_too_few_are_left() -> None:
    story = elastic(2, restarts_left=1)

    story(1, killed(1))
    assert not story.state.goes_on

    story = elastic(3, least=2, restarts_left=1)
    story(1, killed(1), Clean(rank=1, left_behind=0))
    story(2, Tick())
    story(2, killed(2))
    assert story.state.goes_on
    assert story(2, asks(0)) == []
    assert story(3, CanReform(rank=1), asks(1)) == ["known to 1", "generation 1: 0, 1"]


def test_the_wait_before_the_start_of_the_same_instance_doubles() -> None:
    story = elastic(3, restarts_left=9)
    now = 0.0
    waits = []

    for _ in range(4):
        story(now, killed(1))
        assert story.state.deadline == inf
        assert story(now, Clean(rank=1, left_behind=0)) == []
        wait = story.state.deadline - now
        waits.append(wait)
        assert story(now + wait - 0.1, Tick()) == []
        assert story(now + wait, Tick()) == ["start 1"]
        now += 100

    assert waits == [0.25, 1.0, 2.0, 4.0]


def test_none_is_started_again_once_one_has_succeeded() -> None:
    story = elastic(4, restarts_left=9)

    assert story(1, exited(0), killed(1), Clean(rank=1, left_behind=0)) == [
        "lost to 2",
        "lost to 3",
    ]


def test_one_that_was_started_again_too_late_is_killed() -> None:
    story = elastic(3, restarts_left=1)

    story(1, killed(1), Clean(rank=1, left_behind=0))
    story(2, Tick(), CanReform(rank=1), asks(1))
    assert story(2, exited(0)) == []
    assert story(2, exited(2)) == ["kill 1"]
    assert story(3, killed(1)) == []
    # The verdict does not count it.
    assert len(story.state.survived(was_stopped=False)) == 2


@pytest.mark.parametrize(
    "loss",
    [exited(1, 256), ShimLost(rank=1), HostLost(host="b", ranks=(1,), why="x")],
)
def test_the_end_of_one_that_has_not_joined_does_not_fail_a_job_that_is_done(
    loss: Event,
) -> None:
    story = elastic(3, restarts_left=1, hosts=("a", "b", "c"))

    story(1, killed(1), Clean(rank=1, left_behind=0), asks(0), asks(2))
    assert story(2, Tick()) == ["start 1"]
    story(3, exited(0))
    assert story(4, loss) == []
    assert story.state.goes_on
    assert loss in story.state.survived(was_stopped=False)
    # A member that is lost is one too many.
    story(5, killed(2))
    assert not story.state.goes_on


ON_THREE_HOSTS = ("a", "a", "b", "b", "c", "c")


def joins(host: str, *ranks: int) -> HostJoins:
    return HostJoins(host=host, ranks=ranks, host_names=ON_THREE_HOSTS)


def test_an_instance_whose_supervisor_was_killed_is_started_again() -> None:
    story = elastic(restarts_left=1)
    story(1, ShimLost(rank=1), asks(0), asks(2), asks(3))
    # Nothing reports that its processes have ended: the kernel has killed them.
    assert story(1 + membership.FIRST_START_S, Tick()) == ["start 1"]
    story(2, CanReform(rank=1))
    assert story(3, asks(1, 1)) == ["added to 0", "added to 2", "added to 3"]
    story(4, ShimLost(rank=1))
    assert story.state.deadline == inf


def test_an_instance_that_nothing_can_start_takes_one_restart() -> None:
    story = elastic(restarts_left=5)
    story(1, ShimLost(rank=1), asks(0), asks(2), asks(3))
    assert story(2, Tick()) == ["start 1"]

    assert story(2, ShimLost(rank=1, is_final=True)) == []
    assert (story.state.deadline, story.state.restarts_left) == (inf, 4)
    assert story.state.goes_on


def test_members_hear_of_a_host_that_has_come_once_and_re_form_with_it() -> None:
    story = elastic(hosts=ON_THREE_HOSTS[:4])
    assert story(1, joins("c", 4, 5), CanReform(rank=4), CanReform(rank=5)) == [
        "known to 4",
        "known to 5",
    ]
    assert story(2, asks(5)) == []
    assert story(2, asks(4)) == [f"added to {rank}" for rank in range(4)]
    assert story(3, asks(0), asks(1), asks(2)) == []
    assert story(4, asks(3)) == ["generation 1: 0, 1, 2, 3, 4, 5"]

    [new] = story.answers
    assert isinstance(new, BeginGeneration)
    assert new.why == "The host c has joined with instances 4 and 5."
    assert (new.lost, new.added) == ((), (4, 5))
    assert not story.state.newcomers | story.state.brought


def test_a_host_that_returns_brings_the_instances_that_it_had() -> None:
    story = elastic(4, hosts=ON_THREE_HOSTS[:4])
    story(1, HostLost(host="b", ranks=(2, 3), why="x"), asks(0), asks(1))
    assert story(2, joins("b", 2, 3), CanReform(rank=2), CanReform(rank=3)) == [
        "known to 2",
        "known to 3",
    ]
    assert story(3, asks(2), asks(3)) == ["added to 0", "added to 1"]
    assert story(4, asks(0, 1), asks(1, 1)) == ["generation 2: 0, 1, 2, 3"]


def test_members_do_not_wait_for_an_instance_that_fails_as_it_joins() -> None:
    story = elastic(hosts=ON_THREE_HOSTS[:4], restarts_left=1)
    story(1, joins("c", 4, 5), CanReform(rank=4), asks(4))
    assert story(2, exited(5, 256)) == [f"added to {rank}" for rank in range(4)]
    assert story(3, *map(asks, range(4))) == ["generation 1: 0, 1, 2, 3, 4"]
    # It is started again as any other instance is.
    assert story(4, Clean(rank=5, left_behind=0)) == []
    assert story(5, Tick()) == ["start 5"]
    assert story.state.restarts_left == 0
    assert story(6, exited(5, 256), Clean(rank=5, left_behind=0)) == []
    assert story.state.deadline == inf


def test_the_loss_of_a_host_that_joins_is_no_change() -> None:
    story = elastic(hosts=ON_THREE_HOSTS[:4])
    story(1, joins("c", 4, 5), CanReform(rank=4), asks(4))
    lost = HostLost(host="c", ranks=(4, 5), why="x")

    assert story(2, lost) == []
    assert story.state.goes_on
    assert story.state.survived(was_stopped=True) == []
    assert story.state.survived(was_stopped=False) == [lost]


def test_hosts_join_while_all_members_can_re_form_and_none_has_succeeded() -> None:
    story = Story(first_members(2, refusal=""))
    assert not story.state.takes_hosts
    story(1, CanReform(rank=0))
    assert not story.state.takes_hosts
    story(2, CanReform(rank=1))
    assert story.state.takes_hosts
    story(3, exited(0))
    assert not story.state.takes_hosts


def test_the_loss_of_one_that_is_being_started_is_no_change() -> None:
    story = elastic(3, restarts_left=2)

    story(1, killed(1), Clean(rank=1, left_behind=0), asks(0), asks(2))
    story(2, Tick())
    assert story(3, killed(1)) == []
    assert story(3, Clean(rank=1, left_behind=0)) == []
    assert story(4, Tick()) == ["start 1"]


def test_those_that_wait_are_refused_when_too_few_are_left() -> None:
    story = elastic(3)

    story(1, killed(0), asks(1))
    # With --keep-going the job does not stop.
    assert story(2, killed(2)) == ["refused to 1"]
    assert not story.state.goes_on


# --- What counts as a failure.


def test_losses_before_the_present_generation_were_survived() -> None:
    story = elastic()
    first, second, third = killed(0), killed(1), killed(2)

    story(1, first, *map(asks, (1, 2, 3)))
    story(2, second)
    assert story.state.goes_on
    story(2, third)
    assert not story.state.goes_on

    assert story.state.survived(was_stopped=True) == [first]
    assert story.state.survived(was_stopped=False) == [first, second]


def test_no_loss_was_survived_where_instances_cannot_re_form() -> None:
    story = Story(first_members(2, refusal="", least=1))

    story(1, killed(0), killed(1))

    assert story.state.survived(was_stopped=False) == []


def test_a_job_needs_as_many_hosts_as_nnodes_says() -> None:
    story = elastic(hosts=("a", "a", "b", "c"), least_hosts=2)

    story(1, killed(3))
    assert story.state.goes_on
    story(2, HostLost(host="b", ranks=(2,), why="it is gone"))
    assert not story.state.goes_on


def test_one_that_waits_when_no_member_is_left_is_refused_and_killed() -> None:
    story = elastic(2, least=1, restarts_left=1)

    story(1, killed(1), Clean(rank=1, left_behind=0))
    assert story(2, Tick()) == ["start 1"]
    story(3, CanReform(rank=1), asks(1))
    # With --keep-going the attempt goes on.
    assert story(4, killed(0)) == ["refused to 1", "kill 1"]


def test_one_that_does_not_belong_to_the_job_any_more_is_told_so() -> None:
    story = elastic(2, least=1)

    story(1, exited(1))
    assert story(2, CanReform(rank=1)) == ["known to 1"]
    [known] = story.answers
    assert isinstance(known, TellMember)
    assert known.value["refusal"] == ENDING
    assert story(3, asks(1)) == ["refused to 1"]


# --- All orders of events.

EVENTS = st.one_of(
    st.builds(lambda rank: CanReform(rank=rank), st.integers(0, 3)),
    st.builds(lambda rank: ReformEnded(rank=rank), st.integers(0, 3)),
    st.builds(asks, st.integers(0, 3), st.integers(0, 3)),
    st.builds(exited, st.integers(0, 3)),
    st.builds(killed, st.integers(0, 3)),
    st.builds(lambda rank: Clean(rank=rank, left_behind=0), st.integers(0, 3)),
    st.just(HostLost(host="b", ranks=(2, 3), why="it is gone")),
    st.just(Tick()),
)


@given(st.lists(EVENTS, max_size=40))
@settings(max_examples=300, deadline=None)
def test_in_any_order_each_request_has_at_most_one_answer(events: list[Event]) -> None:
    story = Story(first_members(4, refusal="", least=2, restarts_left=3))
    waiting: set[int] = set()

    for now, event in enumerate(events):
        if isinstance(event, ReformAsked) and event.rank in waiting:
            continue  # its host accepts no second one
        if isinstance(event, ReformAsked):
            waiting.add(event.rank)
        story(now, event)
        waiting &= set(story.state.living) | {
            a.rank for a in story.answers if isinstance(a, TellMember)
        }
        if isinstance(event, ReformEnded):
            waiting.discard(event.rank)
        for answer in story.answers:
            match answer:
                case TellMember(rank=rank, kind=protocol.REFORM_REFUSED):
                    waiting.remove(rank)
                case BeginGeneration(members=members):
                    assert len(members) >= 2
                    assert set(members) <= waiting
                    assert set(members) <= set(story.state.living)
                    waiting -= set(members)
        assert story.state.asked.keys() == waiting
        assert replace(story.state).able <= story.state.living
