import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from popdist.engine import _core
from popdist.engine.group import Group
from popdist.engine.shm import shm_member
from popdist.engine.shm.heap import Heap
from popdist.engine.shm.shm_member import ShmMember
from popdist.errors import GroupUnusableError
from tests.popdist.engine.members import SMALL, Me, group_of, results, run


def alone() -> Group:
    return group_of("alone", 0, 1, tuning=SMALL)


def test_threads_that_make_the_first_array_at_once_get_two_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Slow(Heap):
        def __init__(self, *args: Any) -> None:
            time.sleep(0.05)
            super().__init__(*args)

    monkeypatch.setattr(shm_member, "Heap", Slow)
    group = alone()
    made: list[np.ndarray] = []
    threads = [
        threading.Thread(target=lambda: made.append(group.empty(100))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, array in enumerate(made):
        array[...] = number

    assert [set(array) for array in made] == [{0}, {1}, {2}, {3}]
    group.close()


def test_a_child_that_drops_its_parents_array_leaves_it_as_it_is() -> None:
    group = alone()
    kept = [group.empty(1000)]
    kept[0][...] = 3
    child = os.fork()
    if child == 0:
        try:
            kept.clear()
            gc.collect()
        finally:
            os._exit(0)
    os.waitpid(child, 0)

    assert set(kept[0]) == {3}
    # It is still taken.
    assert not np.shares_memory(group.empty(1000), kept[0])
    group.close()


def test_a_thread_that_cannot_be_started_leaves_nothing_behind_that_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    group = alone()
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            group.all_reduce(np.ones(3), async_op=True)

    assert group.all_reduce(np.ones(3)).tolist() == [1] * 3
    assert group.all_reduce(np.ones(3), async_op=True).wait().tolist() == [1] * 3
    group.close()


@pytest.mark.parametrize("replicas", [(), (1, 1)], ids=str)
def test_a_view_has_numbers_of_replicas_for_each_member(
    replicas: tuple[int, ...],
) -> None:
    group = alone()
    with pytest.raises(ValueError, match="one for each member"):
        group.view(replicas)
    group.close()


def test_closing_a_view_closes_no_other_one() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        view, other = group.view(None), group.view(None)
        x = np.ones(3)
        view.close()
        found = [group.all_reduce(x).tolist(), other.all_reduce(x, out=x).tolist()]
        group.close()
        return *found, other.all_reduce(x, async_op=True).wait().tolist()

    assert results(2, member) == [([2.0] * 3, [2.0] * 3, [4.0] * 3)] * 2


CALLS_OF_A_CLOSED_VIEW: dict[str, Callable[[Group], object]] = {
    "all_reduce": lambda g: g.all_reduce(np.ones(3)),
    "in-place": lambda g: g.all_reduce(x := np.ones(3), out=x),
    "grouped": lambda g: g.grouped_all_reduce([np.ones(3)]),
    "async": lambda g: g.barrier(async_op=True),
    "empty": lambda g: g.empty(3),
    "view": lambda g: g.view(None),
}


@pytest.mark.parametrize("call", CALLS_OF_A_CLOSED_VIEW)
def test_a_call_of_a_closed_view_is_refused_and_ends_nothing(call: str) -> None:
    group = alone()
    view = group.view(None)
    view.close()
    with pytest.raises(GroupUnusableError, match="This group is closed"):
        CALLS_OF_A_CLOSED_VIEW[call](view)
    view.give_up("this", ValueError())

    assert repr(view) == "<Group: member 0 of 1, 1 replicas, closed>"
    assert group.all_reduce(np.ones(3)).tolist() == [1.0] * 3
    group.close()


def test_calls_under_way_when_their_view_is_closed_come_to_their_end() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        view = group.view(None)
        if me.rank:
            time.sleep(0.2)
        handle = view.all_reduce(np.ones(3), async_op=True)
        view.close()
        return handle.wait().tolist(), group.all_reduce(np.ones(3)).tolist()

    assert results(2, member) == [([2.0] * 3, [2.0] * 3)] * 2


def test_a_dropped_view_does_not_keep_the_group_open() -> None:
    group = alone()
    group.view(None)
    gc.collect()
    group.close()

    assert group._endpoint.closed


@pytest.mark.parametrize("seconds", [2e10, 1e300])
def test_a_timeout_of_centuries_is_not_over_at_once(seconds: float) -> None:
    def member(me: Me) -> Any:
        group = me.join(timeout=seconds, stall=seconds)
        if me.rank:
            time.sleep(0.2)
        return group.all_reduce(np.ones(3)).tolist()

    ended = run(2, member)

    assert [(one.value, one.stderr) for one in ended] == [([2.0] * 3, "")] * 2


def test_threads_with_small_stacks_may_make_every_kind_of_reduction() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        found: list[float] = []

        def reduce() -> None:
            there = group.empty(10_000)
            there[...] = 1
            group.all_reduce(there, out=there)
            found.append(float(there[0]))
            for algorithm in ("oneshot", "direct", "ring"):
                x = np.ones(100_000, np.float32)
                found.append(float(group.all_reduce(x, algorithm=algorithm)[-1]))
            found.append(float(group.grouped_all_reduce([np.ones(5)] * 3)[2][4]))

        # What musl gives to threads.
        threading.stack_size(128 << 10)
        thread = threading.Thread(target=reduce)
        thread.start()
        thread.join()
        return found

    assert results(2, member) == [[2.0] * 5] * 2


def unwritable(kind: str) -> int:
    if kind == "full":
        return os.open("/dev/full", os.O_WRONLY)
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("kind", ["full", "broken", "closed"])
def test_a_stall_that_cannot_be_reported_does_not_end_the_call(kind: str) -> None:
    def member(me: Me) -> Any:
        group = me.join(stall=0.1)
        if me.rank == 1:
            time.sleep(0.6)
            return group.all_reduce(np.ones(2)).tolist()
        kept, kept_fd = sys.stderr, os.dup(2)
        if kind == "closed":
            sys.stderr = open(os.dup(2), "w")  # noqa: SIM115
            sys.stderr.close()
        else:
            os.dup2(unwritable(kind), 2)
        found = group.all_reduce(np.ones(2)).tolist()
        os.dup2(kept_fd, 2)
        sys.stderr = kept
        return found

    assert [(one.value, one.error) for one in run(2, member)] == [([2, 2], None)] * 2


@pytest.mark.parametrize("call", ["barrier", "grouped_all_reduce"])
def test_ctrl_c_while_an_error_is_explained_shows_none_of_the_core(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: ShmMember) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(ShmMember, "failure", interrupted)
    group = alone()
    group.abort("over")
    given = [[np.ones(3)]] if call == "grouped_all_reduce" else []
    with pytest.raises(KeyboardInterrupt) as stopped:
        getattr(group, call)(*given)

    assert stopped.value.__context__ is None


def opened(memory: Any, rank: int = 0) -> _core.Comm:
    return _core.Comm(memory, rank, None, [-1, -1], [0, 0], 1.0, 1.0, print)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        pytest.param(0, 1, id="magic"),
        pytest.param(1, 1, id="layout"),
        pytest.param(2, 0, id="no-members"),
        pytest.param(2, 3, id="more-members"),
        pytest.param(2, 1 << 60, id="very-many-members"),
        pytest.param(3, 1 << 17, id="longer-blocks"),
        pytest.param(3, 0, id="no-blocks"),
        pytest.param(4, 1 << 40, id="longer-announcements"),
    ],
)
def test_a_header_that_claims_what_is_not_there_is_refused(
    word: int, value: int
) -> None:
    sizes = (2, 1 << 16, 2048, 0)
    memory = np.zeros(_core.arena_sizes(*sizes)[0] // 8, np.uint64)
    _core.initialise(memory, sizes)
    opened(memory).close()
    with pytest.raises(ValueError, match="are no arena of this build"):
        opened(memory[:-1])
    memory[word] = value

    with pytest.raises(ValueError, match="are no arena of this build with a member 0"):
        opened(memory)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda g: g.empty(3, object),
            "The dtype is object, but other processes cannot use the objects of this "
            "one. Give a dtype of numbers.",
        ),
        (
            lambda g: g.all_reduce(np.ones(3), name=5),
            "The name of the call is 5, but must be a text, or None for a call without "
            "a name.",
        ),
        (
            lambda g: g.broadcast(np.ones(3), root=0.5),
            "The root is 0.5, but must be a whole number.",
        ),
        (
            lambda g: g.send(np.ones(3), "1"),
            "The dest is '1', but must be a whole number.",
        ),
    ],
)
def test_arguments_of_wrong_types_are_named(call: Any, words: str) -> None:
    with pytest.raises(TypeError) as refusal:
        call(alone())

    assert str(refusal.value) == words


def test_another_file_in_place_of_a_groups_is_not_closed_with_it() -> None:
    group = alone()
    own = group.transport.member.arena.fd
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, own)
    group.close()

    assert os.readlink(f"/proc/self/fd/{own}") == "/dev/null"
    os.close(own)
    os.close(null)


@pytest.mark.parametrize("used", ["not at all", "async_op", "empty", "fails"])
def test_a_group_that_is_dropped_gives_back_its_files_and_thread(used: str) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    def member(me: Me) -> Any:
        left = []
        # What other tests have left to the collector may have files, too.
        gc.collect()
        before = open_files()
        for turn in range(3):
            me.name += str(turn)
            group = me.join()
            if used == "async_op":
                group.all_reduce(np.ones(3), async_op=True).wait()
            if used == "empty":
                group.empty(1000)[...] = 1
            if used == "fails":
                with pytest.raises(ValueError, match="algorithm"):
                    group.all_reduce(np.ones(3), algorithm="none")
            group.barrier()
            del group
            gc.collect()
            deadline = time.monotonic() + 200
            # A thread of the group closes its files when it ends.
            while time.monotonic() < deadline and (
                threading.active_count() > 1 or open_files() > before
            ):
                time.sleep(0.01)
            left.append((open_files() - before, threading.active_count()))
        return left

    assert results(2, member) == [[(0, 1)] * 3] * 2


def test_an_array_outlives_its_group() -> None:
    group = alone()
    array = group.empty(1000)
    array[...] = 3
    del group
    gc.collect()

    assert (array == 3).all()


def test_a_group_of_too_many_members_is_refused_with_the_way_out() -> None:
    sentence = (
        "A group has 257 members, but can have at most 256. Start fewer instances "
        "with more replicas each."
    )

    with pytest.raises(ValueError, match=sentence):
        group_of("many", 0, 257)
