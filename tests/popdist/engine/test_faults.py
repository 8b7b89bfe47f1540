import itertools
import os
import pickle
import re
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from popdist.engine.group import Group
from popdist.errors import (
    CollectiveAbortedError,
    CollectiveTimeoutError,
    GroupUnusableError,
    MismatchError,
    PeerLostError,
)
from tests.popdist.engine.members import Ended, Me, Members, run

ONES = np.ones(10, np.float32)
MANY = np.ones(1 << 16, np.float32)


def in_the_arena(group: Group) -> Callable[[], Any]:
    x = group.empty(1 << 16)
    x[...] = 1

    def call() -> None:
        group.all_reduce(x, "max", out=x, algorithm="direct")
        assert (x == 1).all()

    return call


def reducing(x: Any, how: str) -> Callable[[Group], Callable[[], Any]]:
    def prepare(group: Group) -> Callable[[], Any]:
        def call() -> None:
            assert (group.all_reduce(x, algorithm=how) == group.size).all()

        return call

    return prepare


def passing_round(x: Any) -> Callable[[Group], Callable[[], Any]]:
    def prepare(group: Group) -> Callable[[], Any]:
        out = np.zeros_like(x)
        to, source = (group.rank + 1) % group.size, (group.rank - 1) % group.size

        def call() -> None:
            if group.rank == 0:
                group.send(x, to)
            group.recv(out, source)
            assert (out == x).all()
            out[...] = 0
            if group.rank != 0:
                group.send(x, to)

        return call

    return prepare


def exchanging(call: Callable[[Group], Any]) -> Callable[[Group], Callable[[], Any]]:
    return lambda group: lambda: call(group)


# What the members do again and again until one of them is gone.
OPERATIONS: dict[str, Callable[[Group], Callable[[], Any]]] = {
    "barrier": exchanging(lambda g: g.barrier()),
    "oneshot": reducing(ONES, "oneshot"),
    "direct": reducing(MANY, "direct"),
    "ring": reducing(MANY, "ring"),
    "arena": in_the_arena,
    "grouped": exchanging(lambda g: g.grouped_all_reduce([ONES, MANY])),
    "async": exchanging(lambda g: g.all_reduce(MANY, async_op=True).wait()),
    "reduce": exchanging(lambda g: g.reduce(MANY, root=1)),
    "reduce_scatter": exchanging(lambda g: g.reduce_scatter(MANY[: 1 << 15 | 1])),
    "all_gather": exchanging(lambda g: g.all_gather(MANY)),
    "broadcast": exchanging(lambda g: g.broadcast(MANY, 1)),
    "gather": exchanging(lambda g: g.gather(MANY, 2)),
    "scatter": exchanging(lambda g: g.scatter(MANY[:3] if g.rank == 1 else None, 1)),
    "all_to_all": exchanging(lambda g: g.all_to_all(MANY[:30000].reshape(3, -1))),
    "small letters": passing_round(ONES),
    "large letters": passing_round(MANY),
}


def errors(ended: list[Ended]) -> list[tuple[type, str] | None]:
    return [(type(e.error), str(e.error)) if e.error else None for e in ended]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_member_that_is_killed_is_named_by_all_others(operation: str) -> None:
    def member(me: Me) -> None:
        group = me.join(instances=(10, 11, 12))
        call = OPERATIONS[operation](group)
        for turn in itertools.count():
            call()
            if turn == 3:
                me.say("under way")

    for victim in range(3):
        with Members(3, member) as members:
            members.hear_all()
            time.sleep(0.0007 * victim)
            members.signal(victim, signal.SIGKILL)
            ended = members.finish()

        assert ended[victim].code == -signal.SIGKILL
        others = [e for rank, e in enumerate(ended) if rank != victim]
        for other in others:
            assert isinstance(other.error, PeerLostError), other
            assert other.error.instances == (10 + victim,)
            assert other.stderr == ""
        assert str(others[0].error) == str(others[1].error)


def test_who_is_killed_is_told_in_full() -> None:
    def member(me: Me) -> None:
        group = me.join(instances=(4, 7))
        if me.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        group.all_reduce(ONES, "max")

    survivor, _ = run(2, member)

    assert errors([survivor]) == [
        (
            PeerLostError,
            "Instance 7 has ended, or left the group, while instance 4 needed it for "
            "all_reduce (max, oneshot) of 10 float32. Look above for what it said "
            "last.",
        )
    ]


@pytest.mark.parametrize("way", ["returns", "closes", "raises"])
def test_a_member_that_leaves_early_is_named_by_all_others(way: str) -> None:
    def member(me: Me) -> None:
        group = me.join()
        group.barrier()
        if me.rank == 1 and way == "raises":
            raise KeyError("a bug")
        if me.rank == 1 and way == "closes":
            group.close()
            me.hear()
        if me.rank == 1:
            return
        group.all_reduce(MANY)

    with Members(3, member) as members:
        if way == "closes":
            while not members.finished([0, 2]):
                time.sleep(0.01)
            members.tell(1, "go")
        ended = members.finish()

    for rank in (0, 2):
        error = ended[rank].error
        assert isinstance(error, PeerLostError)
        assert error.instances == (1,)


def test_whoever_has_done_its_part_may_go() -> None:
    def member(me: Me) -> list[float]:
        group = me.join()
        found = [group.all_reduce(MANY)[-1], group.all_gather(ONES)[2][0]]
        group.close()
        return [float(number) for number in found]

    for _ in range(20):
        ended = run(3, member)
        assert [(e.value, e.error) for e in ended] == [([3.0, 1.0], None)] * 3


def test_a_member_that_comes_late_is_told_the_reason_too() -> None:
    def member(me: Me) -> list[str]:
        group = me.join()
        if me.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if me.rank == 2:
            me.hear()
        told = []
        for _ in range(2):
            with pytest.raises((PeerLostError, GroupUnusableError)) as refusal:
                group.barrier()
            told.append(f"{type(refusal.value).__name__}: {refusal.value}")
        return told

    with Members(3, member) as members:
        while not members.finished([0, 1]):
            time.sleep(0.01)
        members.tell(2, "go")
        ended = members.finish()

    told = [
        "PeerLostError: Instance 1 has ended, or left the group, while instance 0 "
        "needed it for barrier. Look above for what it said last.",
        "GroupUnusableError: This group came to its end in call 1, barrier, for which "
        "instance 0 found: peer_lost. Let the first error end the program, and start "
        "the job again.",
    ]
    assert ended[0].value == told
    assert ended[2].value == told


# --- Members that mean different things

CALLS: dict[str, Callable[[Group], Any]] = {
    "barrier": lambda g: g.barrier(),
    "all_reduce (sum, oneshot) of 10 float32": lambda g: g.all_reduce(ONES),
    "all_reduce (sum, oneshot) of 9 float32": lambda g: g.all_reduce(ONES[1:]),
    "all_reduce (sum, oneshot) of 10 int32": lambda g: g.all_reduce(ONES.astype("i4")),
    "all_reduce (mean, oneshot) of 10 float32": lambda g: g.all_reduce(ONES, "mean"),
    "all_reduce (sum, direct) of 65536 float32": lambda g: g.all_reduce(MANY),
    "all_reduce (sum, ring) of 65536 float32": lambda g: g.all_reduce(
        MANY, algorithm="ring"
    ),
    "reduce (sum, direct) of 10 float32 with root 0": lambda g: g.reduce(ONES),
    "reduce (sum, direct) of 10 float32 with root 1": lambda g: g.reduce(ONES, root=1),
    "reduce_scatter (sum) of 10 float32": lambda g: g.reduce_scatter(ONES),
    "broadcast of 10 float32 with root 0": lambda g: g.broadcast(ONES),
    "broadcast of 10 float32 with root 1": lambda g: g.broadcast(ONES, 1),
    "all_to_all of 10 float32": lambda g: g.all_to_all(ONES.reshape(2, 5)),
    "all_gather of 32 int64": lambda g: g.all_gather(ONES),
}


@pytest.mark.parametrize("call", CALLS)
def test_different_calls_are_an_error_that_names_both_sides(call: str) -> None:
    def member(me: Me) -> None:
        group = me.join(instances=(5, 6))
        group.barrier()
        CALLS[call if me.rank == 0 else other](group)

    for other in CALLS:
        if other == call:
            continue
        sides = [f"instance 5 came to {call}", f"instance 6 came to {other}"]
        told = [
            "Tensor layouts did not match on all instances: "
            f"{one}, but {two}. All instances must make the same calls in the same "
            "order."
            for one, two in (sides, sides[::-1])
        ]
        first, second = errors(run(2, member))
        assert first == second
        assert first in [(MismatchError, words) for words in told]


def test_all_of_many_members_hear_of_a_mismatch() -> None:
    def member(me: Me) -> None:
        group = me.join()
        for length in (10, 11 if me.rank == 3 else 10):
            group.all_reduce(np.ones(length))

    found = errors(run(5, member))

    assert len(set(found)) == 1
    kind, message = found[0] or (None, "")
    assert kind is MismatchError
    assert "instance 3 came to all_reduce (sum, oneshot) of 11 float64" in message
    assert "came to all_reduce (sum, oneshot) of 10 float64" in message


def test_calls_with_other_names_do_not_match() -> None:
    def member(me: Me) -> None:
        me.join().all_reduce(ONES, name="ab"[me.rank])

    first, second = errors(run(2, member))

    assert first == second
    kind, message = first or (None, "")
    assert kind is MismatchError
    names = re.findall(r"of 10 float32 named ([0-9a-f]{16})", message)
    assert len(set(names)) == 2


@pytest.mark.parametrize("other", ["of 11 float32", "of 10 int32"])
def test_a_letter_of_another_kind_is_an_error_on_both_sides(other: str) -> None:
    length, dtype = other.removeprefix("of ").split()

    def member(me: Me) -> None:
        group = me.join()
        if me.rank == 0:
            group.send(ONES, 1)
            group.barrier()
        else:
            group.recv(np.zeros(int(length), dtype), 0)

    told = (
        "Tensor layouts did not match on all instances: instance 1 came to recv "
        f"{other} from member 0, but instance 0 came to send of 10 float32 to member 1."
        " All instances must make the same calls in the same order."
    )
    sender, receiver = errors(run(2, member))
    assert receiver in [
        (MismatchError, told),
        # The sender may have gone on to its barrier.
        (MismatchError, told.replace("send of 10 float32 to member 1", "barrier")),
    ]
    assert sender == receiver


def test_a_program_may_end_the_group_in_its_own_words() -> None:
    def member(me: Me) -> None:
        group = me.join()
        if me.rank == 0:
            group.abort("The tensors have other names.")
        group.barrier()

    found = errors(run(2, member))

    assert found == [(MismatchError, "The tensors have other names.")] * 2


# --- Members that do not come


def test_a_stopped_member_is_told_on_stderr_and_waited_for() -> None:
    def member(me: Me) -> Any:
        group = me.join(stall=0.3, instances=(8, 9))
        group.barrier()
        me.say("here")
        me.hear()
        return group.all_reduce(ONES)

    with Members(2, member) as members:
        members.hear_all()
        members.signal(1, signal.SIGSTOP)
        members.tell(0, "go")
        while not members.stderr(0):
            time.sleep(0.01)
        members.tell(1, "go")
        members.signal(1, signal.SIGCONT)
        ended = members.finish()

    assert [e.value.tolist() for e in ended] == [[2.0] * 10] * 2
    told = r"popdist: instance 8 has waited \d+ s for instance 9 in "
    told += r"all_reduce \(sum, oneshot\) of 10 float32\.\n"
    assert re.fullmatch(told, ended[0].stderr)
    assert ended[1].stderr == ""


@pytest.mark.parametrize("operation", ["barrier", "direct", "all_gather"])
def test_a_member_that_does_not_come_in_time_is_an_error_on_all(operation: str) -> None:
    def member(me: Me) -> None:
        group = me.join(timeout=1.5)
        call = OPERATIONS[operation](group)
        call()
        if me.rank == 1:
            me.say("here")
            me.hear()
        call()

    with Members(3, member) as members:
        members.hear(1)
        members.signal(1, signal.SIGSTOP)
        while not members.finished([0, 2]):
            time.sleep(0.01)
        members.signal(1, signal.SIGCONT)
        members.tell(1, "go")
        found = errors(members.finish())

    assert len(set(found)) == 1
    kind, message = found[0] or (None, "")
    assert kind is CollectiveTimeoutError
    assert re.fullmatch(
        r"Instance 1 did not take its part in .* within 1\.5 s, so instance [02] gave "
        r"up\. Look at what it does instead; if it was only slow, raise "
        r"POPDIST_TIMEOUT\.",
        message,
    )


@pytest.mark.parametrize("operation", ["barrier", "oneshot", "direct", "broadcast"])
def test_control_c_ends_a_call_here_and_for_all_others(operation: str) -> None:
    def interrupt_once_inside(group: Group) -> None:
        while group._comm.last()[1] == 0:
            time.sleep(0.001)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def member(me: Me) -> str:
        group = me.join()
        call = OPERATIONS[operation](group)
        if me.rank == 1:
            threading.Thread(target=interrupt_once_inside, args=(group,)).start()
            with pytest.raises(KeyboardInterrupt):
                call()
            with pytest.raises(GroupUnusableError) as refusal:
                call()
            return str(refusal.value)
        if me.rank == 0:
            # All wait for this one, which comes when it is over.
            me.hear()
        with pytest.raises(CollectiveAbortedError) as refusal:
            call()
        return str(refusal.value)

    with Members(3, member) as members:
        while not members.finished([1, 2]):
            time.sleep(0.01)
        members.tell(0, "go")
        ended = members.finish()

    assert [e.error for e in ended] == [None] * 3
    said = [e.value for e in ended]
    assert said[0] == said[2]
    assert re.fullmatch(
        r"Instance 1 was interrupted in .*, which ended it for all\.", said[0]
    )
    assert "instance 1 found: stopped." in said[1]


# --- Forks, threads, and groups that are no more


def in_a_fork(function: Callable[[], Any]) -> Any:
    """Return what the function returns in a child of this process."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writes, pickle.dumps(function()))
        finally:
            os._exit(0)
    os.close(writes)
    with open(reads, "rb") as answers:
        answer = pickle.load(answers)
    os.waitpid(child, 0)
    return answer


def refusals(group: Group) -> set[str]:
    """Return what every call of the group raises."""
    calls = [
        lambda: group.all_reduce(ONES),
        lambda: group.all_reduce(ONES, name="a"),
        lambda: group.all_reduce(ONES, async_op=True).wait(),
        lambda: group.grouped_all_reduce([ONES]),
        lambda: group.barrier(),
        lambda: group.broadcast(ONES),
        lambda: group.all_gather(ONES),
        lambda: group.reduce(ONES),
        lambda: group.send(ONES, 1 - group.rank),
        lambda: group.recv(ONES.copy(), 1 - group.rank),
        lambda: group.peek(),
    ]
    found = set()
    for call in calls:
        with pytest.raises(GroupUnusableError) as refusal:
            call()
        found.add(str(refusal.value))
    return found


NO_MORE = (
    "This group is closed, or belongs to the process that this one was forked from. "
    "Make the call before it is closed, or call popdist.init() in a process that was "
    "started anew."
)


def test_a_child_cannot_use_its_parents_group_and_does_not_harm_it() -> None:
    def in_the_child(group: Group) -> set[str]:
        found = refusals(group)
        with pytest.raises(GroupUnusableError):
            group.empty(3)
        group.close()
        return found

    def member(me: Me) -> Any:
        group = me.join()
        kept = group.empty(5)
        group.all_reduce(ONES)
        told = in_a_fork(lambda: in_the_child(group))
        kept[...] = 1
        group.all_reduce(kept, out=kept, algorithm="direct")
        return told, group.last_algorithm, kept.tolist()

    ended = run(2, member)

    assert [e.value for e in ended] == [({NO_MORE}, "arena", [2.0] * 5)] * 2


def test_a_fork_in_the_middle_of_a_call_of_another_thread_is_harmless() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        told = None
        if me.rank == 0:
            handle = group.all_reduce(MANY, async_op=True)
            while group._comm.last()[1] == 0:
                time.sleep(0.001)
            told = in_a_fork(lambda: refusals(group))
            me.say("forked")
            return told, handle.wait()[0]
        me.hear()
        return told, group.all_reduce(MANY)[0]

    with Members(2, member) as members:
        members.hear(0)
        members.tell(1, "go")
        ended = members.finish()

    assert [e.value for e in ended] == [({NO_MORE}, 2.0), (None, 2.0)]


def test_a_closed_group_says_so() -> None:
    def member(me: Me) -> set[str]:
        group = me.join()
        group.all_reduce(ONES)
        group.close()
        group.close()
        with pytest.raises(GroupUnusableError):
            group.empty(3)
        return refusals(group)

    assert [e.value for e in run(2, member)] == [{NO_MORE}] * 2


def test_after_an_error_a_group_says_which_it_was() -> None:
    def member(me: Me) -> set[str]:
        group = me.join()
        group.barrier()
        with pytest.raises(MismatchError):
            group.all_reduce(np.ones(3 + me.rank))
        found = refusals(group)
        group.close()
        return found

    first, second = (e.value for e in run(2, member))

    assert first == second
    assert len(first) == 1
    assert re.fullmatch(
        r"This group came to its end in call 2, all_reduce \(sum, oneshot\) of [34] "
        r"float64, for which instance [01] found: mismatch\. Let the first error end "
        r"the program, and start the job again\.",
        first.pop(),
    )


def test_many_threads_of_a_member_take_turns() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        found = []

        # Which thread comes first is open, so all of them make the same calls.
        def turn(call: Callable[[], Any]) -> None:
            threads = [threading.Thread(target=call) for _ in range(5)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        turn(
            lambda: [found.append(float(group.all_reduce(ONES)[3])) for _ in range(99)]
        )
        turn(lambda: [group.barrier() for _ in range(99)])
        turn(
            lambda: [found.append(float(group.all_reduce(MANY)[3])) for _ in range(20)]
        )
        return found

    for ended in run(3, member):
        assert ended.value == [3.0] * (5 * 99 + 5 * 20)


def test_other_threads_run_while_a_member_waits() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        if me.rank == 1:
            me.hear()
            return group.all_reduce(ONES)[0]
        # Only while the main thread waits in the call can this one speak.
        done = threading.Event()

        def speak() -> None:
            while group._comm.last()[1] == 0:
                time.sleep(0.001)
            me.say("alive")
            done.set()

        threading.Thread(target=speak).start()
        found = group.all_reduce(ONES)[0]
        assert done.is_set()
        return found

    with Members(2, member) as members:
        assert members.hear(0) == "alive"
        members.tell(1, "go")
        ended = members.finish()

    assert [e.value for e in ended] == [2.0, 2.0]
