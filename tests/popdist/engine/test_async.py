import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from meeting import run as meet

from popdist.engine.group import Group
from popdist.engine.handle import Handle
from popdist.errors import (
    CollectiveAbortedError,
    CollectiveTimeoutError,
    GroupUnusableError,
    MismatchError,
    PeerLostError,
)
from tests.popdist.engine.members import SMALL, Me, Members, group_of, results, run

MANY = np.ones(1 << 16, np.float32)


def test_calls_run_in_the_order_in_which_they_are_made() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        handles = [
            group.all_reduce(MANY[: 1 + 600 * i] * i, async_op=True) for i in range(100)
        ]
        # A call that is not async takes its place behind them.
        between = group.all_reduce(np.int64(me.rank))
        done = [handle.test() for handle in handles]
        found = [handle.wait() for handle in handles]
        return int(between), all(done), [(len(x), x[0]) for x in found]

    expected = [(1 + 600 * i, 3.0 * i) for i in range(100)]
    assert results(3, member) == [(3, True, expected)] * 3


def test_the_program_goes_on_while_a_call_waits_for_the_others() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        if me.rank == 1:
            me.hear()
            return group.all_reduce(MANY)[0]
        handle = group.all_reduce(MANY, async_op=True)
        before = handle.test(), repr(handle)
        with pytest.raises(RuntimeError) as refusal:
            handle.result()
        # Only now the other one may come.
        me.say("go on")
        found = handle.wait()
        assert handle.result() is found
        return before, str(refusal.value), found[0], handle.test(), repr(handle)

    with Members(2, member) as members:
        members.hear(0)
        members.tell(1, "go")
        ended = members.finish()

    assert ended[1].value == 2.0
    assert ended[0].value == (
        (False, "<Handle: under way>"),
        "The collective call is still under way, so it has no result yet. Call wait() "
        "first.",
        2.0,
        True,
        "<Handle: done>",
    )


def test_every_call_can_run_beside_the_program() -> None:
    def member(me: Me) -> Any:
        flat = me.join()
        group = flat.view((1, 1))
        x = np.arange(8.0).reshape(1, 2, 4) + me.rank
        out = np.zeros(3)
        handles = [
            group.all_reduce(x, async_op=True),
            group.grouped_all_reduce([x, x[:, 1]], "max", async_op=True),
            group.reduce(x, async_op=True),
            group.reduce_scatter(x, async_op=True),
            group.all_gather(x, async_op=True),
            group.gather(x, 1, async_op=True),
            group.broadcast(x, 1, async_op=True),
            group.scatter(x[0] if me.rank == 0 else None, async_op=True),
            group.all_to_all(x, async_op=True),
            group.barrier(async_op=True),
            flat.send(np.ones(3), 1, async_op=True)
            if me.rank == 0
            else flat.recv(out, 0, async_op=True),
        ]
        later = [handle.wait() for handle in handles]
        now = [
            group.all_reduce(x),
            group.grouped_all_reduce([x, x[:, 1]], "max"),
            group.reduce(x),
            group.reduce_scatter(x),
            group.all_gather(x),
            group.gather(x, 1),
            group.broadcast(x, 1),
            group.scatter(x[0] if me.rank == 0 else None),
            group.all_to_all(x),
            group.barrier(),
            flat.send(np.ones(3), 1) if me.rank == 0 else flat.recv(out, 0),
        ]
        return len(now), [repr(one) for one in later] == [repr(one) for one in now]

    assert results(2, member) == [(11, True)] * 2


def test_wrong_arguments_are_refused_at_once() -> None:
    group = group_of("alone", 0, 1, tuning=SMALL)

    with pytest.raises(TypeError):
        group.all_reduce(np.ones(3, complex), async_op=True)
    with pytest.raises(ValueError, match="The root is member 9"):
        group.broadcast(np.ones(3), 9, async_op=True)
    group.close()


def test_an_error_comes_through_the_handle_and_ends_what_follows() -> None:
    def member(me: Me) -> list[str]:
        group = me.join()
        lengths = [3, 4 + me.rank, 5]
        handles = [group.all_reduce(MANY[:n], async_op=True) for n in lengths]
        kinds = [type(handles[0].wait()).__name__]
        for handle in handles[1:]:
            with pytest.raises((MismatchError, GroupUnusableError)) as refusal:
                handle.wait()
            kinds.append(type(refusal.value).__name__)
        # It stays what it is.
        with pytest.raises(MismatchError, match="of 4 float32"):
            handles[1].result()
        return kinds

    told = ["ndarray", "MismatchError", "GroupUnusableError"]
    assert results(2, member) == [told] * 2


def test_a_call_behind_one_that_failed_tells_why_it_did() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        if me.rank == 1:
            with pytest.raises(MismatchError):
                group.barrier()
            return None
        handle = group.all_reduce(MANY, async_op=True)
        with pytest.raises(GroupUnusableError) as refusal:
            group.barrier()
        with pytest.raises(MismatchError) as reason:
            handle.wait()
        return str(refusal.value.__cause__) == str(reason.value)

    assert results(2, member) == [True, None]


def test_handles_waited_for_in_another_order_all_name_who_was_lost() -> None:
    def member(me: Me) -> Any:
        group = me.join(instances=(4, 7))
        if me.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        handles = [group.all_reduce(MANY, async_op=True) for _ in range(3)]
        told = []
        for handle in reversed(handles):
            with pytest.raises((GroupUnusableError, PeerLostError)) as refusal:
                handle.wait()
            cause = refusal.value.__cause__
            told.append((refusal.value.instances, type(cause).__name__))
        return told

    survivor, _ = run(2, member)
    unusable = ((7,), "PeerLostError")
    assert survivor.value == [unusable, unusable, ((7,), "NoneType")]


def test_members_that_both_receive_before_they_send_are_told_why_it_ended() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        group.set_timeout(2)
        handle = group.recv(np.zeros(3), 1 - me.rank, async_op=True)
        # It waits for the recv before it, and so does the other member's.
        with pytest.raises(GroupUnusableError) as refusal:
            group.send(np.ones(3), 1 - me.rank)
        with pytest.raises((MismatchError, CollectiveTimeoutError)) as reason:
            handle.wait()
        said = str(reason.value)
        return "recv of 3 float64" in said, str(refusal.value.__cause__) == said

    assert results(2, member) == [(True, True)] * 2


def interrupt_when_waiting(function: Any) -> None:
    """Send SIGINT to the main thread once this function has called what waits."""
    main = threading.main_thread().ident or 0
    calling = False
    while not calling:
        time.sleep(0.001)
        frame: Any = sys._current_frames()[main]
        # From Python 3.13 on, join itself waits.
        if function is not threading.Thread.join:
            frame = frame.f_back
        while frame and not calling:
            calling = frame.f_code is function.__code__
            frame = frame.f_back
    signal.pthread_kill(main, signal.SIGINT)


@pytest.mark.parametrize(
    ("how", "call", "within"),
    [
        (lambda group, handle: handle.wait(), "all_reduce", Handle.wait),
        (lambda group, handle: group.barrier(), "barrier", Handle.wait),
        (lambda group, handle: group.close(), "close", threading.Thread.join),
    ],
    ids=["in wait", "in a call behind it", "in close"],
)
def test_control_c_while_a_call_is_waited_for_ends_the_group_for_all(
    how: Any, call: str, within: Any
) -> None:
    def member(me: Me) -> Any:
        group = me.join()
        if me.rank == 0:
            # All wait for this one, which comes when it is over.
            me.hear()
            with pytest.raises(CollectiveAbortedError) as told:
                group.all_reduce(MANY)
            return str(told.value)
        handle = group.all_reduce(MANY, async_op=True)
        if me.rank == 2:
            with pytest.raises(CollectiveAbortedError) as told:
                handle.wait()
            return str(told.value)
        threading.Thread(target=interrupt_when_waiting, args=(within,)).start()
        with pytest.raises(KeyboardInterrupt):
            how(group, handle)
        with pytest.raises(GroupUnusableError) as refusal:
            group.barrier()
        return str(refusal.value)

    with Members(3, member) as members:
        while not members.finished([1, 2]):
            time.sleep(0.01)
        members.tell(0, "go")
        ended = members.finish()

    assert [member.error for member in ended] == [None] * 3
    said = f"Instance 1 was interrupted in {call}, which ended it for all."
    assert [ended[0].value, ended[2].value] == [said, said]
    assert said in ended[1].value


def test_control_c_after_the_call_is_over_ends_nothing() -> None:
    given_up: list[BaseException] = []
    handle: Handle[int] = Handle(given_up.append)

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            handle.run(lambda: 5)
            raise KeyboardInterrupt

    handle._done = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        handle.wait()

    assert (handle.result(), given_up) == (5, [])


def test_a_member_that_dies_is_told_through_the_handle() -> None:
    def member(me: Me) -> None:
        group = me.join()
        group.barrier()
        if me.rank == 0:
            group.all_reduce(MANY, async_op=True).wait()

    first, _ = run(2, member)

    assert isinstance(first.error, PeerLostError)
    assert first.error.instances == (1,)


def test_threads_wait_for_the_same_handle() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        handle = group.all_reduce(MANY, async_op=True)
        found: list[float] = []
        threads = [
            threading.Thread(target=lambda: found.append(float(handle.wait()[0])))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    assert results(2, member) == [[2.0] * 4] * 2


def test_closing_waits_for_the_calls_that_were_made() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        handles = [group.all_reduce(MANY, async_op=True) for _ in range(20)]
        group.close()
        return [handle.test() and handle.result()[0] for handle in handles]

    assert results(2, member) == [[2.0] * 20] * 2


@pytest.mark.parametrize("replicas", [None, [20, 3]])
def test_threads_with_small_stacks_can_make_all_calls(
    replicas: list[int] | None,
) -> None:
    def calls(group: Group) -> None:
        own = replicas[group.rank] if replicas else 1
        few, many = np.ones((own, 46), np.float16), np.ones((own, 46000), np.float16)
        parts: tuple[int, ...] = (own, 23, -1)
        if replicas is None:
            few, many, parts = few[0], many[0], (2, -1)
        for x in (few, many):
            for how in ("oneshot", "direct", "ring"):
                group.all_reduce(x, out=x.copy(), algorithm=how)
            group.grouped_all_reduce([x, x])
            group.all_reduce(x, name="a")
            group.reduce(x)
            group.reduce_scatter(x)
            group.broadcast(x)
            group.all_gather(x)
            group.all_to_all(x.reshape(parts))
        held = group.empty(few.shape)
        held[...] = 1
        group.all_reduce(held, out=held, algorithm="direct")
        group.barrier()

    def member(me: Me) -> str:
        made = me.join(replicas=replicas)
        threading.stack_size(48 << 10)
        with ThreadPoolExecutor(1) as threads:
            threads.submit(calls, made).result()
        return made.last_algorithm

    assert results(2, member) == ["arena"] * 2


# Member 0 ends while a thread of it is in a call; member 1 waits for its end.
AT_THE_END = """
    import select, threading
    import numpy
    from tests.popdist.engine.members import group_of
    group = group_of(name, rank, size, timeout=200, stall=200)
    if rank == 1:
        select.select([group.pidfds[0]], [], [], 200)
        sys.exit()

    class Last:
        def __del__(self):
            try:
                CALL
                print("done")
            except PopdistError as error:
                print(type(error).__name__)

    last = Last()
    BEGIN
    while not group.transport.member.comm.last()[1]:
        time.sleep(0.001)
"""
BESIDE = "threading.Thread(target=group.barrier, daemon=True).start()"
LATER = "handle = group.barrier(async_op=True)"


@pytest.mark.parametrize(
    ("begin", "call", "said"),
    [
        (LATER, "group.barrier()", "GroupUnusableError"),
        (LATER, "group.barrier(async_op=True)", "GroupUnusableError"),
        (LATER, "handle.wait()", "GroupUnusableError"),
        (LATER, "group.close()", "done"),
        (BESIDE, "group.barrier()", "GroupUnusableError"),
        (BESIDE, "group.close()", "done"),
    ],
)
def test_at_the_end_of_the_interpreter_nothing_waits_for_a_thread_that_is_gone(
    begin: str, call: str, said: str
) -> None:
    ended = meet(2, AT_THE_END.replace("BEGIN", begin).replace("CALL", call))

    assert ended[0] == (0, f"{said}\n", "")
    assert ended[1].code == 0


@pytest.mark.parametrize("seconds", [-1.0, 0.0, float("nan")])
@pytest.mark.parametrize("name", ["timeout", "stall"])
def test_a_deadline_that_is_no_time_is_refused(name: str, seconds: float) -> None:
    with pytest.raises(
        ValueError, match=f"{name} is {seconds:g}, but must be a number"
    ):
        group_of("refused", 0, 1, **{name: seconds})


def test_a_callback_is_called_once_by_the_thread_that_makes_the_call() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        called: list[Any] = []
        if me.rank == 1:
            me.hear()
        handle = group.all_reduce(MANY, async_op=True)
        if me.rank == 0:

            def note(done: Handle[Any]) -> None:
                called.append(
                    (done is handle, done.result()[0], threading.current_thread().name)
                )

            handle.add_done_callback(note)
            me.say("may the other one come")
        handle.wait()
        group.barrier(async_op=True).wait()
        # What comes too late is called at once, here.
        handle.add_done_callback(
            lambda done: called.append(threading.current_thread().name)
        )
        return called

    with Members(2, member) as members:
        members.hear(0)
        members.tell(1, "come")
        found = [ended.value for ended in members.finish()]

    assert found == [[(True, 2.0, "popdist"), "MainThread"], ["MainThread"]]


def test_an_error_of_a_callback_is_reported_and_breaks_no_call() -> None:
    group = group_of("alone", 0, 1, tuning=SMALL)
    reported: list[Any] = []
    begin = threading.Event()
    usual, threading.excepthook = threading.excepthook, reported.append
    try:
        first = group.submit("first", lambda: begin.wait(200), async_op=True)
        for error in (ValueError("a callback's own"), KeyboardInterrupt()):

            def fail(_: Any, error: BaseException = error) -> None:
                raise error

            first.add_done_callback(fail)
        begin.set()
        assert group.all_reduce(np.ones(3), async_op=True).wait().tolist() == [1] * 3
        first.add_done_callback(fail)
    finally:
        threading.excepthook = usual

    kinds = [report.exc_type for report in reported]
    assert kinds == [ValueError, KeyboardInterrupt, KeyboardInterrupt]
    assert first.wait() is True
    group.close()


def test_a_callback_that_waits_for_a_later_call_is_refused() -> None:
    group = group_of("alone", 0, 1, tuning=SMALL)
    begin, ended = threading.Event(), threading.Event()
    refused: list[str] = []
    later: list[Any] = []

    def wait_for_calls(_: Any) -> None:
        with pytest.raises(RuntimeError) as error:
            group.all_reduce(np.ones(3))
        refused.append(str(error.value))
        later.append(group.all_reduce(np.ones(2), async_op=True))
        with pytest.raises(RuntimeError) as error:
            later[0].wait()
        refused.append(str(error.value))
        ended.set()

    first = group.submit("first", lambda: begin.wait(200), async_op=True)
    assert isinstance(first, Handle)
    first.add_done_callback(wait_for_calls)
    begin.set()

    assert ended.wait(200)
    assert later[0].wait().tolist() == [1, 1]
    assert group.all_reduce(np.ones(3)).tolist() == [1, 1, 1]
    group.close()
    assert (
        refused
        == [
            "A callback of add_done_callback waits for a collective call of the same "
            "group, which can begin only when the callback has returned. Make the call "
            "with async_op=True and wait for it elsewhere."
        ]
        * 2
    )


def test_a_callback_sees_the_error_of_its_call() -> None:
    group = group_of("alone", 0, 1, tuning=SMALL)
    seen: list[str] = []

    def fail() -> None:
        raise ValueError("no such thing")

    def note(handle: Handle[None]) -> None:
        with pytest.raises(ValueError, match="no such thing") as error:
            handle.result()
        seen.append(str(error.value))

    handle = group.submit("a call", fail, async_op=True)
    assert isinstance(handle, Handle)
    handle.add_done_callback(note)
    with pytest.raises(ValueError, match="no such thing"):
        handle.wait()
    group.close()
    assert seen == ["no such thing"]
