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
from popdist.engine.handle import Handle
from popdist.errors import GroupUnusableError, MismatchError
from tests.popdist.engine.members import MANY, ONES, Me, Members, run


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
    ]
    found = set()
    for call in calls:
        with pytest.raises(GroupUnusableError) as refusal:
            call()
        found.add(str(refusal.value))
    return found


NO_MORE = (
    "This group is closed, or belongs to the process that this one was forked from. "
    "Make the call before it is closed, or call popdist.init() in a newly started "
    "process."
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
            while group.transport.member.comm.last()[1] == 0:
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


def test_a_child_that_returns_into_its_parents_call_leaves_it() -> None:
    """A signal's handler forks in the middle of a call, and returns in both."""

    def member(me: Me) -> Any:
        group = me.join()
        reads, writes = os.pipe()
        parent = os.getpid()

        def fork(*_: object) -> None:
            if os.fork():
                me.say("forked")

        signal.signal(signal.SIGUSR1, fork)
        if me.rank == 0:
            me.say("ready")
        else:
            me.hear()
        try:
            found = group.all_reduce(MANY)[0]
        except GroupUnusableError as error:
            os.write(writes, str(error).encode())
            os._exit(0)
        finally:
            if os.getpid() != parent:
                os._exit(1)
        if me.rank == 1:
            return found, group.all_reduce(ONES)[0]
        _, status = os.wait()
        told = os.read(reads, 1000).decode()
        return status, told, found, group.all_reduce(ONES)[0]

    with Members(2, member) as members:
        members.hear(0)
        time.sleep(0.1)
        members.signal(0, signal.SIGUSR1)
        assert members.hear(0) == "forked"
        members.tell(1, "go")
        first, second = members.finish()

    assert first.value == (0, NO_MORE, 2.0, 2.0)
    assert second.value == (2.0, 2.0)


def wait_for(handle: Handle[Any]) -> str:
    with pytest.raises(GroupUnusableError) as refusal:
        handle.wait()
    return str(refusal.value)


def test_a_child_cannot_wait_for_its_parents_handle() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        if me.rank == 1:
            me.hear()
            return group.all_reduce(MANY)[0]
        handle = group.all_reduce(MANY, async_op=True)
        told = in_a_fork(lambda: wait_for(handle))
        me.say("told")
        return told, handle.wait()[0]

    with Members(2, member) as members:
        members.hear(0)
        members.tell(1, "go")
        first, second = members.finish()

    assert first.value == (NOT_HERE, 2.0)
    assert second.value == 2.0


NOT_HERE = (
    "This handle is of a call that the process makes from which this one was forked, "
    "so it cannot be waited for here. Call wait() there, before the fork."
)


def test_a_child_that_returns_into_its_parents_wait_leaves_it() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        if me.rank == 1:
            me.hear()
            return group.all_reduce(MANY)[0]
        reads, writes = os.pipe()
        parent = os.getpid()

        def fork(*_: object) -> None:
            if os.fork():
                me.say("forked")

        signal.signal(signal.SIGUSR1, fork)
        handle = group.all_reduce(MANY, async_op=True)
        me.say("ready")
        try:
            found = handle.wait()[0]
        except GroupUnusableError as error:
            os.write(writes, str(error).encode())
            os._exit(0)
        finally:
            if os.getpid() != parent:
                os._exit(1)
        _, status = os.wait()
        return status, os.read(reads, 1000).decode(), found

    with Members(2, member) as members:
        members.hear(0)
        time.sleep(0.1)
        members.signal(0, signal.SIGUSR1)
        assert members.hear(0) == "forked"
        members.tell(1, "go")
        first, second = members.finish()

    assert first.value == (0, NOT_HERE, 2.0)
    assert second.value == 2.0


def test_a_child_can_have_the_result_of_a_call_that_was_over() -> None:
    def member(me: Me) -> Any:
        handle = me.join().all_reduce(ONES, async_op=True)
        handle.wait()
        return in_a_fork(lambda: handle.wait().tolist())

    assert [e.value for e in run(2, member)] == [[2.0] * 10] * 2


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
        r"This group ended in call 2, all_reduce \(sum, oneshot\) of [34] "
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
            while group.transport.member.comm.last()[1] == 0:
                time.sleep(0.001)
            me.say("alive")
            done.set()

        threading.Thread(target=speak).start()
        found = group.all_reduce(ONES)[0]
        assert done.wait(200)
        return found

    with Members(2, member) as members:
        assert members.hear(0) == "alive"
        members.tell(1, "go")
        ended = members.finish()

    assert [e.value for e in ended] == [2.0, 2.0]
