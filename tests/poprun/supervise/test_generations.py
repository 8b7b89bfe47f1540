"""Who belongs to an elastic job, told as events and answers."""

import signal
from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poprun.plan.values import NOT_ELASTIC
from poprun.supervise import generations
from poprun.supervise.generations import ENDING
from poprun.supervise.membership import (
    Answer,
    BeginGeneration,
    EndJoin,
    KillInstance,
    LeaveHost,
    LetGo,
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
    HostLeaves,
    HostLost,
    ReformAsked,
    ReformEnded,
    Refused,
    ShimLost,
    Started,
    Tick,
)

NAMES = {
    protocol.ELASTIC_KNOWN: "known",
    protocol.MEMBERS_CHANGE: "change",
    protocol.REFORM_REFUSED: "refused",
    protocol.LEFT: "left",
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


def asks(rank: int, generation: int = 0, silent: Sequence[int] = ()) -> ReformAsked:
    return ReformAsked(
        rank=rank,
        generation=generation,
        links_port=5000 + rank,
        store_port=6000 + rank,
        silent=tuple(silent),
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
        case LeaveHost(ranks=ranks):
            return f"leave {', '.join(map(str, ranks))}"
        case EndJoin(rank=rank):
            return f"end the host of {rank}"
        case LetGo(rank=rank):
            return f"let the host of {rank} go"


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
            self.state, answers = generations.decide(self.state, event, now)
            hosts = [a for a in answers if isinstance(a, SuspectHosts)]
            self.suspected += [answer.ranks for answer in hosts]
            self.answers += [a for a in answers if a not in hosts]
        return [words(answer) for answer in self.answers]


def elastic(
    size: int = 4, hosts: Sequence[str] | None = None, **values: object
) -> Story:
    """Return a job all of whose instances can re-form, by default on one host."""
    values = {"refusal": "", "least": 2, **values}
    story = Story(first_members(hosts or ("a",) * size, **values))
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


def test_a_wrapper_is_waited_for_until_poprun_has_read_what_came_before() -> None:
    story = elastic(2, least=1)

    # poprun was stopped meanwhile.
    story(1, ReformEnded(rank=1))
    assert story(60, asks(0), Started(rank=0, pid=1)) == []
    assert story(60, exited(1)) == ["generation 1: 0"]
    assert story.state.is_finishing


def test_a_generation_takes_no_negative_time() -> None:
    story = elastic(2, least=1)
    story(1, ReformEnded(rank=1))
    story(3.5, asks(0))

    # This is when poprun began to wait for the request.
    story(3.25, Tick())

    [begun] = [a for a in story.answers if isinstance(a, BeginGeneration)]
    assert begun.seconds == 0.0


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


def test_another_process_of_a_wrapper_that_was_left_behind_is_no_member() -> None:
    story = elastic(least=3)
    story(1, ReformEnded(rank=1), asks(0), asks(2), asks(3))
    assert story(3, Tick()) == ["generation 1: 0, 2, 3"]
    story(4, CanReform(rank=1))

    # The others would wait for it.
    story(5, killed(3))
    assert not story.state.goes_on


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


def test_members_get_a_sentence_that_tells_what_has_changed() -> None:
    story = elastic(hosts=("a", "a", "b", "b"))

    story(1, killed(1))

    lost = {"kind": "lost", "why": "Instance 1 (a) was killed by SIGKILL."}
    assert story.answers == [
        TellMember(rank=rank, kind=protocol.MEMBERS_CHANGE, value=lost)
        for rank in (0, 2, 3)
    ]


def test_members_that_all_ask_re_form_without_a_loss() -> None:
    story = elastic(2)

    assert story(1, asks(1), asks(0)) == ["generation 1: 0, 1"]
    [begun] = story.answers
    assert isinstance(begun, BeginGeneration)
    assert begun.why == "The program has asked for it."


def test_a_host_that_stays_silent_to_others_is_left() -> None:
    silent: list[Sequence[int]] = [(), (5,), (4,), (4,), (1,), (1,)]

    def ask(generation: int) -> list[Event]:
        return [asks(rank, generation, ranks) for rank, ranks in enumerate(silent)]

    story = elastic(6, hosts=("a", "b", "b", "b", "c", "c"))
    told = [f"lost to {rank}" for rank in range(2, 6)]
    assert story(5, *ask(0)) == [*told, "generation 1: 0, 1, 2, 3, 4, 5"]
    begun = story.answers[-1]
    assert isinstance(begun, BeginGeneration)
    assert begun.why == "Others had no answer from b and c."
    # Long after that, it is no pattern.
    assert story(36, *ask(1))[-1] == "generation 2: 0, 1, 2, 3, 4, 5"
    left = story(41, *ask(2))[-2:]
    assert left == ["generation 3: 0, 1, 2, 3, 4, 5", "leave 5, 3, 1, 2, 3, 4, 5"]
    lost = HostLost(host="c", ranks=(4, 5), why="it is silent")
    assert story(41, lost) == [f"lost to {rank}" for rank in range(4)]
    assert story(42, *ask(3)[:4])[-1] == "generation 4: 0, 1, 2, 3"


@pytest.mark.parametrize(
    ("silent", "why"),
    [
        ((0,), "Instance 2 (b) gets no answer from a."),
        ((), "Instances 1 and 2 re-form."),
    ],
)
def test_a_member_that_begins_when_others_re_form_is_told(
    silent: Sequence[int], why: str
) -> None:
    story = Story(first_members(("a", "b", "b"), refusal="", least=2))
    assert story(1, CanReform(rank=2), asks(2, silent=silent)) == ["known to 2"]
    assert story(1, CanReform(rank=1)) == ["known to 1", "lost to 1"]
    assert story(2, asks(1)) == []
    assert story(3, CanReform(rank=0)) == ["known to 0", "lost to 0"]
    [_, told] = story.answers
    assert isinstance(told, TellMember)
    assert told.value == {"kind": "lost", "why": why}
    assert story(4, asks(0)) == ["generation 1: 0, 1, 2"]
    assert story.state.silent_hosts == ({"a"} if silent else set())
    # Another process of a member, such as one after exec.
    assert story(5, CanReform(rank=0)) == ["known to 0"]


def test_members_that_wait_for_one_are_told_that_it_gets_no_answer() -> None:
    story = elastic(hosts=("a", "a", "b", "c"))

    assert story(5, asks(2, silent=(0,))) == [f"lost to {rank}" for rank in (0, 1, 3)]
    [first, *_] = story.answers
    assert isinstance(first, TellMember)
    assert first.value == {
        "kind": "lost",
        "why": "Instance 2 (b) gets no answer from a.",
    }


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
    story = Story(first_members(("a",) * 3, refusal="", least=1))
    story(0, CanReform(rank=0), CanReform(rank=1))

    assert story(1, killed(1)) == []
    assert not story.state.goes_on


def test_a_job_that_is_not_elastic_says_why() -> None:
    story = Story(first_members(("a",) * 2, refusal=NOT_ELASTIC))

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
    story.state, answers = generations.end(story.state)
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


def test_one_that_succeeds_before_it_joins_is_started_again() -> None:
    story = elastic(3, restarts_left=2)

    story(1, killed(1), Clean(rank=1, left_behind=0), asks(0), asks(2))
    assert story(2, Tick()) == ["start 1"]
    assert story(2, CanReform(rank=1), exited(1)) == ["known to 1"]
    assert story(3, Clean(rank=1, left_behind=0)) == []
    assert story.state.deadline == 4.0
    assert story(4, Tick()) == ["start 1"]
    assert story(5, CanReform(rank=1), asks(1)) == [
        "known to 1",
        "added to 0",
        "added to 2",
    ]
    assert story(5, asks(0, 1), asks(2, 1)) == ["generation 2: 0, 1, 2"]
    # Now it is a member.
    assert story(6, exited(1)) == []
    assert story.state.is_finishing


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


ON_TWO_HOSTS = ("a", "a", "b", "b")


def joins(host: str, *ranks: int) -> HostJoins:
    return HostJoins(host=host, ranks=ranks)


def test_an_instance_whose_supervisor_was_killed_is_started_again() -> None:
    story = elastic(restarts_left=1)
    story(1, ShimLost(rank=1), asks(0), asks(2), asks(3))
    # Nothing reports that its processes have ended: the kernel has killed them.
    assert story(1 + generations.FIRST_START_S, Tick()) == ["start 1"]
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
    story = elastic(hosts=ON_TWO_HOSTS)
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


def test_reasons_name_the_host_of_an_instance_in_a_job_on_several() -> None:
    story = elastic(3)
    story(1, killed(2), asks(0))
    assert story(2, asks(1)) == ["generation 1: 0, 1"]
    [alone] = story.answers
    story(3, joins("b", 3), CanReform(rank=3), asks(3), asks(0, 1))
    assert story(4, asks(1, 1)) == ["generation 2: 0, 1, 3"]
    story(5, killed(3), asks(0, 2))
    assert story(6, asks(1, 2)) == ["generation 3: 0, 1"]
    [on_two] = story.answers

    assert isinstance(alone, BeginGeneration)
    assert isinstance(on_two, BeginGeneration)
    assert alone.why == "Instance 2 was killed by SIGKILL."
    assert on_two.why == "Instance 3 (b) was killed by SIGKILL."


def test_a_host_that_returns_brings_the_instances_that_it_had() -> None:
    story = elastic(hosts=ON_TWO_HOSTS)
    story(1, HostLost(host="b", ranks=(2, 3), why="x"), asks(0), asks(1))
    assert story(2, joins("b", 2, 3), CanReform(rank=2), CanReform(rank=3)) == [
        "known to 2",
        "known to 3",
    ]
    assert story(3, asks(2), asks(3)) == ["added to 0", "added to 1"]
    assert story(4, asks(0, 1), asks(1, 1)) == ["generation 2: 0, 1, 2, 3"]


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (exited(5, 256), "instance 5 (c) exited with code 1"),
        (exited(5, 0), "instance 5 (c) exited with code 0"),
        (Refused(rank=5, errno=13, tried="x"), "instance 5 (c) could not be started"),
        (ShimLost(rank=5), "the supervisor of instance 5 (c) was killed"),
    ],
)
def test_a_host_whose_newcomer_fails_does_not_join_and_takes_no_restart(
    failure: Event, words: str
) -> None:
    story = elastic(hosts=ON_TWO_HOSTS, restarts_left=1)
    story(1, joins("c", 4, 5), CanReform(rank=4), asks(4))
    assert story(2, failure) == ["kill 4", "end the host of 5"]

    [_, end] = story.answers
    assert isinstance(end, EndJoin)
    assert end.why.startswith(words)
    assert end.why.endswith(" before the host had joined")
    lost = HostLost(host="c", ranks=(4, 5), why=end.why)
    assert story(3, killed(4), Clean(rank=5, left_behind=0), lost) == []
    assert (story.state.deadline, story.state.restarts_left) == (inf, 1)
    # None of it is a cause if the job is stopped later.
    assert story.state.goes_on
    assert story.state.survived(was_stopped=True) == [failure, killed(4), lost]


def test_a_job_without_enough_members_ends_by_the_failure_of_a_newcomer() -> None:
    story = elastic(2, restarts_left=1)
    story(1, joins("b", 2, 3), killed(1))
    assert story.state.goes_on
    assert story(2, exited(3, 256)) == []
    assert not story.state.goes_on


def test_newcomers_that_wait_are_refused_if_the_job_ends_by_one_on_their_host() -> None:
    story = elastic(2, restarts_left=1)
    story(1, joins("b", 2, 3), CanReform(rank=2), asks(2), killed(1))

    # With --keep-going the job does not stop.
    assert story(2, exited(3, 256)) == ["refused to 2"]


def test_an_instance_that_is_started_again_on_a_host_that_has_joined_counts() -> None:
    story = elastic(hosts=ON_TWO_HOSTS, restarts_left=1)
    story(1, joins("c", 4, 5), CanReform(rank=4), CanReform(rank=5))
    story(2, asks(4), asks(5), *map(asks, range(4)))
    assert story(3, exited(5, 256)) == [f"lost to {rank}" for rank in range(5)]
    assert story(4, Clean(rank=5, left_behind=0)) == []
    assert story(5, Tick()) == ["start 5"]
    assert story.state.restarts_left == 0
    assert story(6, exited(5, 256), Clean(rank=5, left_behind=0)) == []
    assert story.state.deadline == inf


def test_a_host_joins_with_all_its_instances_or_in_a_later_generation() -> None:
    story = elastic(hosts=ON_TWO_HOSTS)
    story(1, joins("c", 4, 5), CanReform(rank=4), CanReform(rank=5), asks(4))
    assert story(2, killed(3)) == ["lost to 0", "lost to 1", "lost to 2"]
    assert story(3, *map(asks, range(3))) == ["generation 1: 0, 1, 2"]
    assert story(4, asks(5)) == ["added to 0", "added to 1", "added to 2"]
    assert story(5, *(asks(rank, 1) for rank in range(3))) == [
        "generation 2: 0, 1, 2, 4, 5"
    ]
    [new] = story.answers
    assert isinstance(new, BeginGeneration)
    assert new.seconds == 2.0


def test_the_loss_of_a_host_that_joins_is_no_change() -> None:
    story = elastic(hosts=ON_TWO_HOSTS)
    story(1, joins("c", 4, 5), CanReform(rank=4), asks(4))
    lost = HostLost(host="c", ranks=(4, 5), why="x")

    assert story(2, lost) == []
    assert story.state.goes_on
    assert story.state.survived(was_stopped=True) == [lost]


def test_hosts_join_while_all_members_can_re_form_and_none_has_succeeded() -> None:
    story = Story(first_members(("a",) * 2, refusal=""))
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


# --- Hosts that leave.

LEAVES = HostLeaves(host="b", ranks=(2, 3), why="the script no longer prints b")
ON_THREE_HOSTS = ("a", "a", "b", "b", "c", "c")


def test_the_next_generation_is_without_a_host_that_leaves() -> None:
    story = elastic(6, ON_THREE_HOSTS, restarts_left=2)
    assert story(1, LEAVES) == [f"leaves to {rank}" for rank in range(6)]
    assert story(2, *map(asks, range(5))) == []
    assert story(3, asks(5)) == [
        "left to 2",
        "left to 3",
        "let the host of 3 go",
        "generation 1: 0, 1, 4, 5",
    ]

    refusal, _, let_go, new = story.answers
    assert isinstance(refusal, TellMember)
    assert refusal.value == (
        "The script no longer prints b, so instance 2 (b) has left the job."
    )
    assert isinstance(let_go, LetGo)
    assert let_go.why == LEAVES.why
    assert isinstance(new, BeginGeneration)
    assert new.why == "The script no longer prints b."
    assert (new.lost, new.added) == ((2, 3), ())
    # It is refused in the same words if it asks again.
    assert story(4, asks(2)) == ["left to 2"]
    assert story.answers == [refusal]


def test_the_end_of_an_instance_that_has_left_is_no_failure_and_no_end() -> None:
    story = elastic(6, ON_THREE_HOSTS, restarts_left=2)
    story(1, LEAVES, *map(asks, range(6)))
    lost = HostLost(host="b", ranks=(2, 3), why=LEAVES.why)
    ends = [exited(2, 256), exited(3), lost]
    assert story(2, *ends, Clean(rank=2, left_behind=0)) == []
    assert story(3, Tick()) == []

    assert story.state.takes_hosts
    assert story.state.restarts_left == 2
    assert story.state.survived(was_stopped=True) == ends


def test_an_instance_that_has_left_fails_after_the_end_of_all_others() -> None:
    story = elastic(6, ON_THREE_HOSTS)
    story(1, LEAVES, *map(asks, range(6)))
    story(2, *map(exited, (0, 1, 4, 5)))
    late = exited(2, 256)
    story(3, late)

    assert story.state.is_of_left(late)
    assert late in story.state.survived(was_stopped=False)


def test_a_host_stays_for_the_generation_after_a_loss_and_brings_its_state() -> None:
    story = elastic(6, ON_THREE_HOSTS)
    story(1, LEAVES, killed(4))

    assert story(2, *map(asks, (0, 1, 2, 3, 5))) == ["generation 1: 0, 1, 2, 3, 5"]
    # It is announced again.
    assert not story.state.leaving
    assert len(story(3, LEAVES)) == 5
    assert story(4, *(asks(rank, 1) for rank in (0, 1, 2, 3, 5)))[-1] == (
        "generation 2: 0, 1, 5"
    )


def test_a_host_stays_when_members_re_form_because_of_silence() -> None:
    story = elastic(6, ON_THREE_HOSTS)
    story(1, LEAVES, asks(0, silent=(4,)), *map(asks, range(1, 6)))

    assert story.state.members == (0, 1, 2, 3, 4, 5)


def test_a_host_stays_when_others_have_become_too_few() -> None:
    story = elastic(hosts=("a", "b", "b", "b"))
    leaves = HostLeaves(host="b", ranks=(1, 2, 3), why="x")

    assert not story.state.can_do_without(leaves.ranks)
    story(1, leaves, *map(asks, range(4)))
    assert story.state.members == (0, 1, 2, 3)
    assert not story.state.left


def test_a_host_that_leaves_before_it_has_joined_goes_at_once() -> None:
    story = elastic(hosts=ON_TWO_HOSTS)
    story(1, joins("c", 4, 5), CanReform(rank=4), asks(4))
    leaves = HostLeaves(host="c", ranks=(4, 5), why="x")

    assert story(2, leaves) == ["left to 4", "let the host of 5 go"]
    assert not story.state.newcomers | story.state.brought


def test_nothing_is_started_on_a_host_that_is_to_leave() -> None:
    story = elastic(6, ON_THREE_HOSTS, restarts_left=2)
    story(1, killed(2), Clean(rank=2, left_behind=0), LEAVES)
    story(1, killed(3), Clean(rank=3, left_behind=0))
    assert story(9, Tick()) == []

    # A host without any instance has nothing to pass on.
    assert story(9, LEAVES) == ["let the host of 3 go"]


@pytest.mark.parametrize("is_before", [False, True])
def test_instances_are_started_again_on_a_host_that_stays_after_all(
    is_before: bool,
) -> None:
    story = elastic(6, ON_THREE_HOSTS, least=3, restarts_left=2)
    failure = [killed(2), Clean(rank=2, left_behind=0)]
    story(1, *(failure if is_before else ()), LEAVES)
    story(1, *(() if is_before else failure), Tick())
    story(2, HostLost(host="c", ranks=(4, 5), why="it is gone"), Tick())
    assert story.state.deadline == inf

    assert story(3, *map(asks, (0, 1, 3))) == ["generation 1: 0, 1, 3"]
    assert story.state.deadline < 3
    assert story(3, Tick()) == ["start 2"]


def test_a_host_that_has_left_may_join_again_with_its_instances() -> None:
    story = elastic(6, ON_THREE_HOSTS)
    story(1, LEAVES, *map(asks, range(6)))
    story(2, HostLost(host="b", ranks=(2, 3), why=LEAVES.why), joins("b", 2, 3))
    story(3, CanReform(rank=2), CanReform(rank=3), asks(2), asks(3))
    story(4, *(asks(rank, 1) for rank in (0, 1, 4, 5)))
    assert story.state.members == (0, 1, 2, 3, 4, 5)

    assert story(5, killed(2))
    assert not story.state.is_of_left(killed(2))


def swapped(**values: object) -> Story:
    """Return a full job on a and b, whose host c is ready to join."""
    story = elastic(hosts=ON_TWO_HOSTS, most=4, **values)
    story(1, joins("c", 4, 5), CanReform(rank=4), CanReform(rank=5))
    # There is no room for it, so the members are not told.
    assert story(1, asks(4), asks(5)) == []
    assert story.state.can_do_without(LEAVES.ranks)
    return story


def test_a_host_joins_a_full_job_in_the_generation_that_another_has_left() -> None:
    story = swapped(least=4)
    assert story(2, LEAVES) == [f"leaves to {rank}" for rank in range(4)]
    assert story(3, *map(asks, range(4))) == [
        "left to 2",
        "left to 3",
        "let the host of 3 go",
        "generation 1: 0, 1, 4, 5",
    ]

    new = story.answers[-1]
    assert isinstance(new, BeginGeneration)
    assert new.why == (
        "The script no longer prints b; the host c has joined with instances 4 and 5."
    )
    assert (new.lost, new.added) == ((2, 3), (4, 5))


def test_a_host_waits_for_a_place_while_another_stays_for_its_state() -> None:
    story = swapped(least=3)
    story(2, LEAVES, killed(0))
    assert story(3, *map(asks, (1, 2, 3))) == ["generation 1: 1, 2, 3"]

    assert story(4, LEAVES) == [f"leaves to {rank}" for rank in (1, 2, 3)]
    assert story(5, *(asks(rank, 1) for rank in (1, 2, 3)))[-1] == (
        "generation 2: 1, 4, 5"
    )


def test_an_instance_that_is_started_again_keeps_its_place() -> None:
    story = swapped(restarts_left=2)
    story(2, killed(0), killed(1), Clean(rank=0, left_behind=0))
    story(2, Clean(rank=1, left_behind=0))
    assert story(2, asks(2), asks(3)) == ["generation 1: 2, 3"]
    story(3, Tick(), CanReform(rank=0), CanReform(rank=1), asks(0), asks(1))

    assert story(4, asks(2, 1), asks(3, 1)) == ["generation 2: 0, 1, 2, 3"]


def test_a_host_takes_the_place_of_one_that_is_lost_before_it_has_left() -> None:
    story = elastic(hosts=ON_TWO_HOSTS, least=4, most=4)
    story(1, joins("c", 4, 5), CanReform(rank=4), asks(4))
    assert not story.state.can_do_without(LEAVES.ranks)
    story(2, HostLost(host="b", ranks=(2, 3), why="x"))

    # The others wait for it.
    assert story.state.goes_on
    assert story(3, asks(0), asks(1), CanReform(rank=5)) == ["known to 5"]
    assert story(4, asks(5)) == ["generation 1: 0, 1, 4, 5"]


def test_a_wrapper_is_not_started_again_after_a_host_has_joined_in_its_place() -> None:
    story = swapped(restarts_left=2)
    story(2, ReformEnded(rank=2), ReformEnded(rank=3), asks(0), asks(1))
    assert story(4, Tick()) == ["generation 1: 0, 1, 4, 5"]

    story(5, exited(2, 256), Clean(rank=2, left_behind=0))
    assert story.state.deadline == inf
    # Now there is room for it.
    story(6, HostLost(host="c", ranks=(4, 5), why="x"))
    story(6, ShimLost(rank=3), Tick())
    assert story.state.starts.keys() == {3}


def test_a_host_stays_if_the_one_in_its_place_does_not_join_after_all() -> None:
    story = swapped(least=4)
    assert story(2, LEAVES, killed(4))[-2:] == ["kill 5", "end the host of 4"]

    assert story(3, *map(asks, range(4))) == ["generation 1: 0, 1, 2, 3"]
    assert not story.state.can_do_without(LEAVES.ranks)


@pytest.mark.parametrize("victim", [0, 2])
def test_others_are_not_waited_for_if_there_is_no_room_for_them(victim: int) -> None:
    story = swapped(least=4)
    story(2, killed(victim))

    assert not story.state.goes_on
    assert story(3, *(asks(rank) for rank in range(4) if rank != victim))
    for refusal in story.answers:
        assert isinstance(refusal, TellMember)
        assert refusal.value.startswith("Only 3 instances of the job are left, but it")


def test_an_instance_that_the_others_need_is_started_on_a_host_that_is_to_leave() -> (
    None
):
    story = swapped(least=4, restarts_left=2)
    story(2, LEAVES, killed(2), Clean(rank=2, left_behind=0))
    assert story.state.goes_on
    assert story(3, *map(asks, (0, 1, 3)), Tick()) == ["start 2"]
    story(4, CanReform(rank=2))

    # The host stays for one generation more.
    assert story(4, asks(2)) == ["generation 1: 0, 1, 2, 3"]
    assert story(5, LEAVES, *(asks(rank, 1) for rank in range(4)))[-1] == (
        "generation 2: 0, 1, 4, 5"
    )


def test_instances_end_one_by_one_on_a_host_whose_place_another_takes() -> None:
    story = swapped(least=4, restarts_left=2)
    story(2, LEAVES, killed(2), killed(3))
    assert story.state.goes_on
    story(2, HostLost(host="b", ranks=(2, 3), why="x"))

    assert story(3, asks(0), asks(1)) == ["generation 1: 0, 1, 4, 5"]


@pytest.mark.parametrize("least", [2, 3])
def test_a_host_joins_when_no_instance_is_started_again_in_its_place(
    least: int,
) -> None:
    story = swapped(least=least, restarts_left=2)
    story(2, killed(2), killed(3))
    begins = story(3, asks(0), asks(1))
    lost = HostLost(host="b", ranks=(2, 3), why="x")

    if least == 3:
        # The others wait.
        assert begins == []
        assert story(4, lost) == ["generation 1: 0, 1, 4, 5"]
    else:
        assert begins == ["generation 1: 0, 1"]
        assert story(4, lost) == ["added to 0", "added to 1"]
        assert story(5, asks(0, 1), asks(1, 1)) == ["generation 2: 0, 1, 4, 5"]


def test_hosts_join_as_long_as_there_is_room() -> None:
    story = elastic(hosts=ON_TWO_HOSTS, most=7)
    story(1, joins("c", 4, 5), joins("d", 6, 7))
    story(1, *(CanReform(rank=rank) for rank in range(4, 8)))
    assert story(2, asks(6), asks(4)) == []
    assert len(story(2, asks(7))) == 4
    assert story(3, asks(5)) == []

    assert story(4, *map(asks, range(4))) == ["generation 1: 0, 1, 2, 3, 6, 7"]
    assert story.state.asked.keys() == {4, 5}
    # It takes the next place.
    story(5, HostLost(host="d", ranks=(6, 7), why="x"))
    assert story(5, *(asks(rank, 1) for rank in range(4))) == [
        "generation 2: 0, 1, 2, 3, 4, 5"
    ]


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
    story = Story(first_members(("a",) * 2, refusal="", least=1))

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

RANKS = st.integers(0, 5)
OTHER_HOSTS = {"b": (2, 3), "c": (4, 5)}
EVENTS = st.one_of(
    st.builds(lambda rank: CanReform(rank=rank), RANKS),
    st.builds(lambda rank: ReformEnded(rank=rank), RANKS),
    st.builds(asks, RANKS, st.integers(-1, 3)),
    st.builds(exited, RANKS),
    st.builds(killed, RANKS),
    st.builds(lambda rank: Clean(rank=rank, left_behind=0), RANKS),
    st.sampled_from(
        [HostLost(host=h, ranks=r, why="it is gone") for h, r in OTHER_HOSTS.items()]
    ),
    st.sampled_from([joins(host, *ranks) for host, ranks in OTHER_HOSTS.items()]),
    st.just(LEAVES),
    st.just(Tick()),
)
# -1 stands for the present generation.
ALL_ASK = [asks(rank, -1) for rank in range(6)]
C_ASKS = [joins("c", 4, 5), CanReform(rank=4), CanReform(rank=5), *ALL_ASK[4:]]
STEPS = st.one_of(EVENTS.map(lambda event: [event]), st.sampled_from([ALL_ASK, C_ASKS]))


@given(st.lists(STEPS, max_size=40), st.integers(2, 4), st.integers(0, 3))
@settings(max_examples=300, deadline=None)
def test_in_any_order_each_request_has_at_most_one_answer(
    steps: list[list[Event]], least: int, restarts_left: int
) -> None:
    most = 4
    story = elastic(
        hosts=ON_TWO_HOSTS, least=least, most=most, restarts_left=restarts_left
    )
    waiting: set[int] = set()

    for now, event in enumerate(event for step in steps for event in step):
        if isinstance(event, ReformAsked) and event.generation < 0:
            event = replace(event, generation=story.state.generation)
        ranks = getattr(event, "ranks", (getattr(event, "rank", 0),))
        if not isinstance(event, HostJoins) and ranks[0] not in story.state.hosts:
            continue  # it has not come yet
        if isinstance(event, ReformAsked) and event.rank in waiting:
            continue  # its host accepts no second one
        if isinstance(event, ReformAsked):
            waiting.add(event.rank)
        present = story.state.living | story.state.starts.keys()
        if isinstance(event, HostJoins) and (
            present & {*ranks} or not story.state.takes_hosts
        ):
            continue  # no host joins then
        going = {*story.state.leaving, *story.state.left}
        if event == LEAVES and (
            going >= {2, 3}
            or not story.state.takes_hosts
            or not story.state.can_do_without((2, 3))
        ):
            continue  # no host leaves then
        brought = story.state.brought
        story(now, event)
        waiting &= set(story.state.living) | {
            a.rank for a in story.answers if isinstance(a, TellMember)
        }
        if isinstance(event, ReformEnded):
            waiting.discard(event.rank)
        for answer in story.answers:
            match answer:
                case TellMember(
                    rank=rank, kind=protocol.REFORM_REFUSED | protocol.LEFT
                ):
                    waiting.remove(rank)
                case BeginGeneration(members=members):
                    assert least <= len(members) <= most
                    assert set(members) <= waiting
                    for host in OTHER_HOSTS.values():
                        own = brought & {*host}
                        assert len(own & set(members)) in (0, len(own))
                    assert set(members) <= set(story.state.living)
                    waiting -= set(members)
        assert story.state.asked.keys() == waiting
        assert replace(story.state).able <= story.state.living
        if story.state.goes_on and waiting >= story.state.living:
            # They wait only for instances that are started again.
            assert story.state.possible_starts
