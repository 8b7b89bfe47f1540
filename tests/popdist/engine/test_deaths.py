import ctypes
import itertools
import mmap
import os
import re
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from meeting import STACKS, stop

from popdist.engine.group import Group
from popdist.errors import (
    CollectiveAbortedError,
    CollectiveTimeoutError,
    GroupUnusableError,
    PeerLostError,
)
from popdist.negotiation.packets import Packets
from tests.popdist.engine.members import (
    LONG,
    MANY,
    ONES,
    Me,
    Members,
    errors,
    results,
    run,
    waits_in,
)


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
    "small messages": passing_round(ONES),
    "large messages": passing_round(MANY),
}


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


@pytest.mark.parametrize("victim", range(3))
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_member_that_is_stopped_is_told_and_waited_for(
    operation: str, victim: int
) -> None:
    turns = np.frombuffer(mmap.mmap(-1, 3 * 8), np.int64)  # all see them

    def member(me: Me) -> None:
        call = OPERATIONS[operation](me.join(stall=0.1))
        while True:
            call()
            turns[me.rank] += 1

    others = [rank for rank in range(3) if rank != victim]
    told = f" s for instance {victim} (process "
    with Members(3, member) as members:
        wait_until(lambda: turns.min() > 2)
        members.signal(victim, signal.SIGSTOP)
        wait_until(lambda: any(told in members.stderr(rank) for rank in others))
        stopped_at = turns.copy()
        members.signal(victim, signal.SIGCONT)
        wait_until(lambda: (turns > stopped_at + 2).all())
        members.signal(victim, signal.SIGKILL)
        ended = members.finish()

    assert [type(ended[rank].error) for rank in others] == [PeerLostError] * 2


def wait_until(true: Callable[[], Any]) -> None:
    while not true():
        time.sleep(0.005)


def silenced(me: Me, group: Group, number: int) -> None:
    """Get a signal after saying that the group has ended, and before saying why."""
    word = np.frombuffer(group.transport.member.arena.memory, np.uint32)[32:33]
    time.sleep(0.05)  # The others wait for this one by now.
    word[0] = 3 + me.rank
    os.kill(os.getpid(), number)


def test_a_member_that_dies_while_it_ends_the_group_is_named_by_all_others() -> None:
    def member(me: Me) -> None:
        group = me.join()
        group.barrier()
        me.say("here")
        if me.rank == 1:
            me.hear()
            silenced(me, group, signal.SIGKILL)
        group.barrier()

    with Members(3, member) as members:
        members.hear_all()
        # They give one that lives a short time to say why, in which a busy machine may
        # not have ended it.
        for rank in (0, 2):
            stop(members.pids[rank])
        members.tell(1, "go")
        wait_until(lambda: members.finished([1]))
        for rank in (0, 2):
            members.signal(rank, signal.SIGCONT)
        first, _, third = errors(members.finish())

    assert first == third
    kind, message = first or (None, "")
    assert kind is PeerLostError
    assert message.startswith("Instance 1 has ended, or closed the group, while ")


def test_a_member_that_is_stopped_while_it_ends_the_group_delays_no_other_member() -> (
    None
):
    def member(me: Me) -> None:
        group = me.join()
        group.barrier()
        if me.rank == 1:
            silenced(me, group, signal.SIGSTOP)
        group.barrier()

    with Members(3, member) as members:
        wait_until(lambda: members.finished([0, 2]))
        members.signal(1, signal.SIGKILL)
        first, _, third = errors(members.finish())

    assert first == third
    assert first == (
        CollectiveAbortedError,
        "Instance 1 was interrupted in barrier, which ended it for all.",
    )


def test_a_program_may_close_the_files_that_show_who_lives() -> None:
    def member(me: Me) -> float:
        group = me.join()
        watched = [fd for fd in group.transport.member.arena.pidfds if fd >= 0]
        assert watched
        if me.rank == 0:
            os.closerange(min(watched), max(watched) + 1)
        else:
            # Until member 0 has looked who is still there.
            time.sleep(0.1)
        return float(group.all_reduce(ONES)[0])

    assert results(2, member) == [2.0] * 2


def a_pidfd_of_the_dead() -> int:
    child = os.fork()
    if child == 0:
        os._exit(0)
    pidfd = os.pidfd_open(child)
    select.select([pidfd], [], [])
    return pidfd


# What a program may open after it has closed all files.
OTHER_FILES: dict[str, Callable[[], int]] = {
    "closed": lambda: -1,
    "readable": lambda: os.open("/dev/zero", os.O_RDONLY),
    "silent": lambda: os.pipe()[0],
    "a pidfd of a process that has ended": a_pidfd_of_the_dead,
    "a pidfd of a process that lives": lambda: os.pidfd_open(os.getppid()),
}


def replace_files_that_show_who_lives(group: Group, other: str) -> None:
    watched = [fd for fd in group.transport.member.arena.pidfds if fd >= 0]
    assert watched
    os.closerange(min(watched), max(watched) + 1)
    file = OTHER_FILES[other]()
    for fd in watched if file >= 0 else ():
        os.dup2(file, fd)


@pytest.mark.parametrize("other", OTHER_FILES)
def test_a_peer_lives_though_the_file_that_shows_it_is_another(other: str) -> None:
    def member(me: Me) -> float:
        group = me.join()
        if me.rank == 0:
            replace_files_that_show_who_lives(group, other)
        else:
            # Until member 0 has looked who is still there.
            time.sleep(1)
        return float(group.all_reduce(ONES)[0])

    assert results(2, member) == [2.0] * 2


@pytest.mark.parametrize("other", OTHER_FILES)
def test_a_peer_is_lost_though_the_file_that_shows_it_is_another(other: str) -> None:
    def member(me: Me) -> None:
        group = me.join(timeout=1000)
        group.barrier()
        if me.rank == 0:
            replace_files_that_show_who_lives(group, other)
        else:
            os.kill(os.getpid(), signal.SIGKILL)
        group.barrier()

    (survivor, _) = run(2, member)

    assert isinstance(survivor.error, PeerLostError)
    assert survivor.error.instances == (1,)


def test_a_member_that_runs_another_program_is_lost() -> None:
    def member(me: Me) -> None:
        group = me.join(timeout=1000)
        group.barrier()
        if me.rank == 1:
            # It keeps its number and its start time.
            os.execvp("sleep", ["sleep", "1000"])
        group.barrier()

    with Members(3, member) as members:
        wait_until(lambda: members.finished([0, 2]))
        members.signal(1, signal.SIGKILL)
        first, _, third = members.finish()

    for survivor in (first, third):
        assert isinstance(survivor.error, PeerLostError)
        assert survivor.error.instances == (1,)


def test_a_member_whose_main_thread_has_ended_lives() -> None:
    def member(me: Me) -> float:
        group = me.join()
        if me.rank == 0:
            return float(group.all_reduce(ONES)[0])
        totals: list[float] = []

        def reduce() -> None:
            time.sleep(1)
            totals.append(float(group.all_reduce(ONES)[0]))
            me.say(totals[0])
            os._exit(0)

        threading.Thread(target=reduce).start()
        # The system call ends this thread alone.
        ctypes.CDLL(None).syscall({"aarch64": 93}.get(os.uname().machine, 60), 0)
        raise AssertionError

    with Members(2, member) as members:
        assert members.hear(1) == 2.0
        assert members.finish()[0].value == 2.0


def test_a_killed_member_is_named_in_the_whole_error() -> None:
    def member(me: Me) -> None:
        group = me.join(instances=(4, 7))
        if me.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        group.all_reduce(ONES, "max")

    survivor, _ = run(2, member)

    assert errors([survivor]) == [
        (
            PeerLostError,
            "Instance 7 has ended, or closed the group, while instance 4 needed it for "
            "all_reduce (max, oneshot) of 10 float32. Look above for its "
            "last output.",
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


def test_a_member_that_has_done_its_part_may_end() -> None:
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
        "PeerLostError: Instance 1 has ended, or closed the group, while instance 0 "
        "needed it for barrier. Look above for its last output.",
        "GroupUnusableError: This group ended in call 1, barrier, for which "
        "instance 0 found: peer_lost. Let the first error end the program, and start "
        "the job again.",
    ]
    assert ended[0].value == told
    assert ended[2].value == told


# --- Members that do not come


def test_a_stopped_member_is_told_on_stderr_and_waited_for() -> None:
    def member(me: Me) -> Any:
        # Only member 0 may report what takes long, the barrier among it.
        stall = 0.5 if me.rank == 0 else LONG
        group = me.join(stall=stall, instances=(8, 9))
        group.barrier()
        me.say("here")
        me.hear()
        return group.all_reduce(ONES)

    with Members(2, member) as members:
        members.hear_all()
        members.signal(1, signal.SIGSTOP)
        members.tell(0, "go")
        wait_until(lambda: "in all_reduce" in members.stderr(0))
        members.tell(1, "go")
        members.signal(1, signal.SIGCONT)
        ended = members.finish()

    assert [e.value.tolist() for e in ended] == [[2.0] * 10] * 2
    told = (
        r"popdist: instance 8 has waited \d+ s for instance 9 "
        rf"\(process \d+ on {os.uname().nodename}\) in "
    )
    told += r"all_reduce \(sum, oneshot\) of 10 float32\.\n"
    told += r"popdist: instance 9 is in no call since call 1, barrier\.\n"
    assert re.search(told + STACKS + r"\Z", ended[0].stderr)
    # Of the caller, not of the engine alone.
    assert "in member\n" in ended[0].stderr
    assert ended[1].stderr == ""


STALLS: dict[str, tuple[Callable[[Group], Any], Callable[[Group], Any], str]] = {
    "recv": (
        lambda g: g.recv(np.zeros_like(ONES), 0),
        lambda g: g.send(ONES, 1),
        "recv of 10 float32 from instance 0",
    ),
    "send": (
        lambda g: g.send(MANY, 0),
        lambda g: g.recv(np.zeros_like(MANY), 1),
        "send of 65536 float32 to instance 0",
    ),
    "negotiation": (
        lambda g: Packets(g).exchange(b""),
        lambda g: Packets(g).exchange(b""),
        "its next named call",
    ),
}


@pytest.mark.parametrize("call", STALLS)
def test_each_call_that_waits_long_for_one_member_is_told(call: str) -> None:
    waits, comes, words = STALLS[call]

    def member(me: Me) -> None:
        group = me.join(stall=0.2)
        for _ in range(2):
            if me.rank == 0:
                me.hear()
                comes(group)
            else:
                waits(group)

    told = (
        r"popdist: instance 1 has waited \d+ s for instance 0 "
        rf"\(process \d+ on {os.uname().nodename}\) in {words}\.\n"
    )
    with Members(2, member) as members:
        wait_until(lambda: len(re.findall(told, members.stderr(1))) == 1)
        members.tell(0, "go")
        wait_until(lambda: len(re.findall(told, members.stderr(1))) == 2)
        members.tell(0, "go")
        ended = members.finish()

    assert [e.error for e in ended] == [None] * 2


def without_limit(error: tuple[type, str] | None) -> tuple[type, str] | None:
    """Return an error without the timeout in it, which is each member's own."""
    return error and (error[0], re.sub(r"within \d+ s,", "in time,", error[1]))


@pytest.mark.parametrize("operation", ["barrier", "direct", "all_gather"])
def test_a_member_that_does_not_come_in_time_is_an_error_on_all(operation: str) -> None:
    def member(me: Me) -> None:
        group = me.join()
        call = OPERATIONS[operation](group)
        call()
        if me.rank:
            me.say("here")
            me.hear()
        if me.rank == 2:
            group.set_timeout(1.0)
        call()

    with Members(3, member) as members:
        members.hear(1)
        members.signal(1, signal.SIGSTOP)
        # The error would name member 0, too, if it came late.
        wait_until(lambda: waits_in(members.pids[0], 2))
        members.tell(2, "go")
        while not members.finished([0, 2]):
            time.sleep(0.01)
        members.signal(1, signal.SIGCONT)
        members.tell(1, "go")
        found = errors(members.finish())

    assert len(set(map(without_limit, found))) == 1
    kind, message = found[2] or (None, "")
    assert kind is CollectiveTimeoutError
    assert re.fullmatch(
        r"Instance 1 did not take its part in .* within 1 s, so instance 2 gave "
        r"up\. Look at what it does instead; if it was only slow, raise "
        r"POPDIST_TIMEOUT\. Instance 1 is in no call since call \d+, .*\.",
        message,
    )


def test_all_members_that_are_missing_are_named_with_their_last_calls() -> None:
    def member(me: Me) -> None:
        group = me.join(stall=2.0, instances=(4, 5, 6, 7, 8))
        group.barrier()
        group.all_reduce(ONES)
        me.say("here")
        me.hear()
        if me.rank == 4:
            group.set_timeout(3.0)
        if me.rank in (0, 2, 4):
            group.all_reduce(ONES, "max")

    with Members(5, member) as members:
        members.hear_all()
        members.tell(2, "go")
        # The report of member 0 would name it, too, if it came late.
        wait_until(lambda: waits_in(members.pids[2], 3))
        members.tell(0, "go")
        # Member 4 comes after that report, and gives up.
        wait_until(lambda: "in all_reduce (max" in members.stderr(0))
        members.tell(4, "go")
        while not members.finished([0, 2, 4]):
            time.sleep(0.01)
        for rank in (1, 3):
            members.tell(rank, "go")
        ended = members.finish()

    found = errors(ended)
    assert len({without_limit(error) for error in found if error is not None}) == 1
    recent = (
        "is in no call since call 2, all_reduce (sum, oneshot) of 10 float32; before "
        "that, call 1, barrier."
    )
    kind, message = found[4] or (None, "")
    assert kind is CollectiveTimeoutError
    assert message == (
        "Instances 5 and 7 did not take their part in all_reduce (max, oneshot) of 10 "
        "float32 within 3 s, so instance 8 gave up. Look at what they do instead; if "
        "they were only slow, raise POPDIST_TIMEOUT. "
        f"Instance 5 {recent} Instance 7 {recent}"
    )
    told = (
        r"popdist: instance 4 has waited \d+ s for instances 5, 7 and 8 \(processes "
        rf"\d+, \d+ and \d+ on {os.uname().nodename}\) in all_reduce "
        r"\(max, oneshot\) of 10 float32\.\n"
        rf"popdist: instance 5 {re.escape(recent)}\n"
        rf"popdist: instance 7 {re.escape(recent)}\n"
        rf"popdist: instance 8 {re.escape(recent)}\n"
    )
    assert re.search(told + STACKS + r"\Z", ended[0].stderr)


@pytest.mark.parametrize("operation", ["barrier", "oneshot", "direct", "broadcast"])
def test_control_c_ends_a_call_here_and_for_all_others(operation: str) -> None:
    def interrupt_once_inside(group: Group) -> None:
        while group.transport.member.comm.last()[1] == 0:
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
