import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from popdist.engine.group import Group
from popdist.errors import CollectiveAbortedError, PopdistError
from tests.popdist.engine.members import SMALL, Me, Members, group_of, run

IN_OWN_CALL = (
    "This thread is in the middle of a call to this group, and what interrupted it, a "
    "signal's handler perhaps, made another one, which would wait for the first for "
    "ever. Let the handler only note the signal, and make the call once the first one "
    "is over."
)
CLOSED_IN_OWN_CALL = (
    "close() was called in the middle of a call to the same group, by what interrupted "
    "it, a signal's handler perhaps, so the group has come to its end for all members. "
    "Let the handler raise an exception, and close the group once the call is over."
)
INTERRUPTED = "Instance 0 was interrupted in barrier, which ended it for all."


def wait_for_a_call(group: Group) -> None:
    """Return when this member has begun a call."""
    while not group.transport.member.comm.last()[1]:
        time.sleep(0.001)


def interrupt_in_call(group: Group, handler: Callable[[], Any]) -> None:
    """Let a signal's handler run in the middle of this thread's next call."""
    signal.signal(signal.SIGUSR1, lambda *_: handler())

    def send() -> None:
        wait_for_a_call(group)
        os.kill(os.getpid(), signal.SIGUSR1)

    threading.Thread(target=send).start()


def test_a_handler_that_calls_the_group_inside_its_call_is_refused() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        x = np.ones(3, np.float32)
        refused = []

        def handler() -> None:
            try:
                group.all_reduce(x, out=x)
            except RuntimeError as error:
                refused.append(str(error))
            me.say("refused")

        if me.rank == 0:
            interrupt_in_call(group, handler)
        else:
            me.hear()
        group.barrier()
        return refused, group.all_reduce(x, out=x).tolist()

    with Members(2, member) as members:
        assert members.hear(0) == "refused"
        members.tell(1, "come")
        first, second = members.finish()

    # The call that was interrupted is none the worse for it.
    assert first.value == ([IN_OWN_CALL], [2.0] * 3)
    assert second.value == ([], [2.0] * 3)


def ended_by(handler: Callable[[Group], Callable[[], Any]]) -> tuple[Any, Any]:
    """Interrupt a member in a barrier, and return how both members' calls ended."""

    def member(me: Me) -> None:
        group = me.join()
        if me.rank == 0:
            interrupt_in_call(group, handler(group))
        else:
            me.hear()
        try:
            group.barrier()
        finally:
            me.say("over")

    with Members(2, member) as members:
        assert members.hear(0) == "over"
        members.tell(1, "come")
        first, second = members.finish()
    return first.error, second.error


def test_an_error_raised_by_a_signal_handler_ends_the_group_for_all() -> None:
    first, second = ended_by(lambda group: group.barrier)

    assert isinstance(first, RuntimeError)
    assert str(first) == IN_OWN_CALL
    assert isinstance(second, CollectiveAbortedError)


def test_a_handler_that_closes_the_group_inside_its_call_ends_it_for_all() -> None:
    first, second = ended_by(lambda group: group.close)

    assert isinstance(first, RuntimeError)
    assert str(first) == CLOSED_IN_OWN_CALL
    assert isinstance(second, CollectiveAbortedError)
    assert str(second) == INTERRUPTED


def test_a_group_that_a_handler_could_not_close_can_be_closed_later() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        if me.rank:
            me.hear()
            with pytest.raises(CollectiveAbortedError):
                group.barrier()
            return None
        interrupt_in_call(group, group.close)
        with pytest.raises(RuntimeError):
            group.barrier()
        me.say("refused")
        before = len(os.listdir("/proc/self/fd"))
        group.close()
        return before - len(os.listdir("/proc/self/fd")) > 0

    with Members(2, member) as members:
        assert members.hear(0) == "refused"
        members.tell(1, "come")
        first, _ = members.finish()

    assert first.value is True


def test_ctrl_c_works_while_another_threads_call_is_waited_for() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        x = np.ones(3, np.float32)
        if me.rank == 1:
            me.hear()
            group.barrier()
            return None

        def other() -> None:
            try:
                group.barrier()
            except PopdistError as error:
                told.append(error)

        # The core asks each time that it looks whether it is this thread's turn.
        looks = threading.Event()
        sys.is_finalizing = looks.set  # type: ignore[assignment]

        def tell() -> None:
            assert looks.wait(200)
            me.say("waiting")

        told: list[PopdistError] = []
        thread = threading.Thread(target=other)
        thread.start()
        wait_for_a_call(group)
        threading.Thread(target=tell).start()
        try:
            group.all_reduce(x, out=x)
        except KeyboardInterrupt:
            me.say("interrupted")
        thread.join()
        return [type(error).__name__ for error in told]

    with Members(2, member) as members:
        assert members.hear(0) == "waiting"
        members.signal(0, signal.SIGINT)
        assert members.hear(0) == "interrupted"
        members.tell(1, "come")
        first, second = members.finish()

    # The call that was not made is missing: no member waits for it.
    assert first.value == ["GroupUnusableError"]
    assert isinstance(second.error, CollectiveAbortedError)
    assert str(second.error) == INTERRUPTED


def test_threads_take_turns() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        found = []

        def reduce() -> None:
            for _ in range(50):
                found.append(float(group.all_reduce(np.ones(1))[0]))

        threads = [threading.Thread(target=reduce) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return set(found), len(found), group.transport.member.comm.runs()

    for ended in run(2, member):
        assert ended.value == ({2.0}, 150, (150, 0, 0, 0))


def test_a_thread_that_waits_for_its_turn_is_woken_once_for_many_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = group_of("alone", 0, 1, replicas=[8], tuning=SMALL)
    in_call = group.transport.member.comm.in_call
    small, large = np.ones((8, 1)), np.ones((8, 1 << 18))
    # The core asks each time that it looks.
    looks: list[None] = []
    monkeypatch.setattr(sys, "is_finalizing", lambda: looks.append(None))
    comes = threading.Event()

    def call_in_turn() -> int:
        """Make a call while the other thread makes one, and count the looks."""
        while in_call() is None:
            time.sleep(0)
        looks.clear()
        comes.set()
        group.all_reduce(small)
        return len(looks)

    counts = []
    with ThreadPoolExecutor(1) as other:
        for _ in range(5):
            comes.clear()
            looked = other.submit(call_in_turn)
            while not comes.is_set():
                group.all_reduce(large, out=large)
            for _ in range(20000):
                group.all_reduce(small, out=small)
            counts.append(looked.result())
    # Calls that end before it runs again are 10000 or so.
    assert max(counts) < 100
