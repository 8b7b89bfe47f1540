"""Deferred calls: made by the thread that waits for them, or else by the group's."""

import threading
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from popdist.engine import worker
from popdist.engine.group import Group
from popdist.engine.handle import Handle
from tests.popdist.engine.members import SMALL, Me, Members, group_of


@pytest.fixture
def group() -> Iterator[Group]:
    with group_of("alone", 0, 1, tuning=SMALL) as group:
        yield group


@pytest.fixture
def _never_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_DEFER_SECONDS", 1000.0)


def thread() -> str:
    return threading.current_thread().name


def started(group: Group, async_op: Any = "deferred", action: Any = thread) -> Any:
    handle = group.submit("a call", action, async_op)
    assert isinstance(handle, Handle)
    return handle


@pytest.mark.usefixtures("_never_due")
def test_the_thread_that_waits_makes_the_calls_up_to_that_one(group: Group) -> None:
    made: list[int] = []
    handles = [
        started(group, action=lambda i=i: (made.append(i), thread())[1])
        for i in range(4)
    ]

    assert handles[1].wait() == "MainThread"
    assert made == [0, 1]
    # A call that returns its result takes its place behind them.
    assert group.submit("another", lambda: (len(made), thread()), False) == (
        4,
        "MainThread",
    )
    assert [handle.result() for handle in handles] == ["MainThread"] * 4


def test_a_call_that_is_not_waited_for_is_made_by_the_group(group: Group) -> None:
    for _ in range(3):
        ended = threading.Event()
        handle = started(group, action=lambda ended=ended: (ended.set(), thread())[1])
        assert ended.wait(200)
        assert handle.wait() == "popdist"


@pytest.mark.usefixtures("_never_due")
def test_a_call_that_begins_at_once_takes_those_before_it_along(group: Group) -> None:
    first, second = started(group), started(group, async_op=True)

    assert (second.wait(), first.wait()) == ("popdist", "popdist")
    # The next ones are deferred again.
    assert started(group).wait() == "MainThread"


@pytest.mark.usefixtures("_never_due")
def test_a_handle_that_is_not_waited_for_has_the_groups_thread_make_the_call(
    group: Group,
) -> None:
    called = threading.Event()
    called_back = started(group)
    called_back.add_done_callback(lambda _: called.set())
    assert called.wait(200)
    limited = started(group)
    assert limited.is_done_in(200)
    assert (called_back.wait(), limited.wait()) == ("popdist", "popdist")


@pytest.mark.usefixtures("_never_due")
def test_closing_makes_the_calls_that_wait(group: Group) -> None:
    handle = started(group)
    group.close()

    assert handle.result() == "popdist"


class Data:
    """What a tensor is to a call, but with weak references."""


@pytest.mark.parametrize("async_op", ["deferred", True])
def test_the_thread_refers_to_no_data_of_a_call_that_is_over(
    group: Group, async_op: Any
) -> None:
    # To free a tensor while Python ends would abort the process.
    begins, over = threading.Event(), threading.Event()
    leftovers: list[Any] = []

    class NotingEvent(threading.Event):
        def set(self) -> None:
            super().set()
            leftovers.extend(reference() for reference in references)
            over.set()

    def action(argument: Data, result: Data) -> Data:
        assert begins.wait(200)
        return result

    argument, result = Data(), Data()
    references = [weakref.ref(argument), weakref.ref(result)]
    handle = started(group, async_op, partial(action, argument, result))
    handle._done = NotingEvent()
    del handle, argument, result
    begins.set()
    assert over.wait(200)

    assert leftovers == [None, None]


@pytest.mark.usefixtures("_never_due")
def test_an_error_of_a_deferred_call_is_raised_in_wait(group: Group) -> None:
    def fail() -> None:
        raise ValueError("no such thing")

    handle = started(group, action=fail)
    with pytest.raises(ValueError, match="no such thing"):
        handle.wait()


@pytest.mark.usefixtures("_never_due")
def test_a_callback_in_the_thread_that_waits_cannot_wait_for_the_next_call(
    group: Group,
) -> None:
    refused: list[str] = []

    def wait_for_calls(_: Any) -> None:
        for wait in (later.wait, group.barrier):
            with pytest.raises(RuntimeError, match="can begin only when the callback"):
                wait()
            refused.append(thread())

    handle = started(group)
    later = started(group)
    # Without the hurry of add_done_callback(), so that this thread makes the call.
    handle._callbacks.append(partial(wait_for_calls, handle))
    handle.wait()

    assert later.wait() in ("MainThread", "popdist")
    assert refused == ["MainThread"] * 2


def test_members_need_not_wait_in_the_order_of_their_calls() -> None:
    """Member 0 waits for member 1, which waits for a call of 0 that is deferred."""

    def member(me: Me) -> Any:
        group = me.join()
        if me.rank == 1:
            found = group.submit("barrier", group.transport.barrier, False)
            me.say("over")
            return found
        handle = group.submit("barrier", group.transport.barrier, "deferred")
        me.hear()
        assert isinstance(handle, Handle)
        return handle.wait()

    with Members(2, member) as members:
        members.hear(1)
        members.tell(0, "go on")
        assert [ended.value for ended in members.finish()] == [None, None]


def test_elements_at_an_address_are_one_row(group: Group) -> None:
    x = np.ones(3)
    assert group.all_reduce_at(x.ctypes.data, 3, 1, 0)
    assert not group.view([2]).all_reduce_at(x.ctypes.data, 3, 1, 0)

    group.close()
    assert not group.all_reduce_at(x.ctypes.data, 3, 1, 0)
