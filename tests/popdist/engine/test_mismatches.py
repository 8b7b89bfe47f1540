import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from popdist.engine.group import Group
from popdist.errors import CollectiveAbortedError, MismatchError
from tests.popdist.engine.members import MANY, ONES, Me, Members, errors, results, run

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
    "reduce (sum, direct) of 10 float32 with root on instance 5": lambda g: g.reduce(
        ONES
    ),
    "reduce (sum, direct) of 10 float32 with root on instance 6": lambda g: g.reduce(
        ONES, root=1
    ),
    "reduce_scatter (sum) of 10 float32": lambda g: g.reduce_scatter(ONES),
    "broadcast of 10 float32 with root on instance 5": lambda g: g.broadcast(ONES),
    "broadcast of 10 float32 with root on instance 6": lambda g: g.broadcast(ONES, 1),
    "all_to_all of 10 float32": lambda g: g.all_to_all(ONES.reshape(2, 5)),
    "all_gather": lambda g: g.all_gather(ONES),
    # Too much to be on its way while no member takes it.
    "send of 65536 float32 to instance {other}": lambda g: g.send(MANY, 1 - g.rank),
    "recv of 10 float32 from instance {other}": lambda g: g.recv(
        np.zeros_like(ONES), 1 - g.rank
    ),
}


def no_match(one: str, two: str) -> list[tuple[type, str]]:
    """Return the errors that tell of these two sides, whichever saw it."""
    return [
        (
            MismatchError,
            f"Tensor layouts did not match on all instances: {first}, but {second}. "
            "All instances must make the same calls in the same order.",
        )
        for first, second in ((one, two), (two, one))
    ]


@pytest.mark.parametrize("call", CALLS)
def test_different_calls_are_an_error_that_names_both_sides(call: str) -> None:
    def member(me: Me) -> None:
        group = me.join(instances=(5, 6))
        group.barrier()
        CALLS[call if me.rank == 0 else other](group)

    for other in CALLS:
        if other == call:
            continue
        told = no_match(
            f"instance 5 came to {call.format(other=6)}",
            f"instance 6 came to {other.format(other=5)}",
        )
        first, second = errors(run(2, member))
        assert first == second
        assert first in told


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
        me.join().all_reduce(ONES, name=f"of member {me.rank}")

    for rank, error in enumerate(errors(run(2, member))):
        kind, message = error or (None, "")
        assert kind is MismatchError
        # A member does not know the names that others alone have given.
        assert f"of 10 float32 named 'of member {rank}'" in message
        assert "of 10 float32 under another name" in message


@pytest.mark.parametrize("other", ["of 11 float32", "of 10 int32"])
def test_a_message_of_another_kind_is_an_error_on_both_sides(other: str) -> None:
    length, dtype = other.removeprefix("of ").split()

    def member(me: Me) -> None:
        group = me.join()
        if me.rank == 0:
            group.send(ONES, 1)
            group.barrier()
        else:
            group.recv(np.zeros(int(length), dtype), 0)

    told, _ = no_match(
        f"instance 1 came to recv {other} from instance 0",
        "instance 0 came to send of 10 float32 to instance 1",
    )
    assert errors(run(2, member)) == [told] * 2


def test_a_message_of_another_kind_is_told_though_its_sender_went_on() -> None:
    def member(me: Me) -> None:
        group = me.join()
        if me.rank == 0:
            group.send(ONES, 1)
            group.send(ONES.astype("i4"), 2)
            me.say("sent")
            me.hear()
        elif me.rank == 1:
            me.hear()
            group.recv(np.zeros(11, np.float32), 0)
        group.barrier()

    told, _ = no_match(
        "instance 1 came to recv of 11 float32 from instance 0",
        "instance 0 came to send of 10 float32 to instance 1",
    )
    with Members(3, member) as members:
        members.hear(0)
        members.tell(1, "go")
        while not members.finished([1]):
            time.sleep(0.01)
        members.tell(0, "go")
        assert errors(members.finish()) == [told] * 3


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda g: g.recv(np.zeros_like(ONES), 1 - g.rank),
            "instance {} came to recv of 10 float32 from instance {}",
        ),
        (
            lambda g: g.send(MANY, 1 - g.rank),
            "instance {} came to send of 65536 float32 to instance {}",
        ),
        (
            lambda g: g.recv(np.zeros_like(ONES), 1 - g.rank, async_op=True).wait(),
            "instance {} came to recv of 10 float32 from instance {}",
        ),
    ],
    ids=["recv", "send", "async"],
)
def test_two_that_wait_for_each_others_messages_get_an_error(
    call: Any, words: str
) -> None:
    def member(me: Me) -> None:
        group = me.join()
        group.all_reduce(ONES)
        call(group)

    told = no_match(words.format(0, 1), words.format(1, 0))
    first, second = errors(run(2, member))

    assert first == second
    assert first in told


def test_a_member_that_waits_for_a_deadlocked_one_gets_the_reason() -> None:
    def member(me: Me) -> None:
        group = me.join()
        if me.rank == 2:
            group.barrier()
        else:
            group.recv(np.zeros_like(ONES), me.rank + 1)

    told, _ = no_match(
        "instance 1 came to recv of 10 float32 from instance 2",
        "instance 2 came to barrier",
    )
    assert errors(run(3, member)) == [told] * 3


def test_messages_that_come_late_are_no_mismatch() -> None:
    def member(me: Me) -> int:
        group = me.join()
        got = np.zeros_like(MANY)
        other = 1 - me.rank
        for turn in range(12):
            if turn % 2 == me.rank:
                # Longer than the other one waits before it looks what goes on.
                time.sleep(0.05)
                group.send(MANY, other)
            else:
                group.recv(got, other)
            if turn % 3 == 0:
                group.barrier()
        return int(got.sum())

    assert results(2, member) == [1 << 16] * 2


@pytest.mark.parametrize(
    ("end", "error"),
    [("abort", CollectiveAbortedError), ("end_with_mismatch", MismatchError)],
)
def test_a_program_ends_the_group_with_its_own_message(
    end: str, error: type[Exception]
) -> None:
    def member(me: Me) -> None:
        group = me.join()
        if me.rank == 0:
            getattr(group, end)("The loss is not a number.")
        group.barrier()

    found = errors(run(2, member))

    assert found == [(error, "The loss is not a number.")] * 2


def test_abort_takes_characters_that_no_utf_8_has() -> None:
    def member(me: Me) -> None:
        group = me.join()
        if me.rank == 0:
            group.abort("a\0b\udc80")
        group.barrier()

    assert errors(run(2, member)) == [(CollectiveAbortedError, "a b?")] * 2


@pytest.mark.parametrize("character", ["x", "é", "€", "\N{GRINNING FACE}"])
def test_words_that_are_too_long_are_cut_after_a_whole_character(
    character: str,
) -> None:
    def member(me: Me) -> None:
        group = me.join()
        if me.rank == 0:
            group.end_with_mismatch(character * 1000)
        group.barrier()

    kept = character * (511 // len(character.encode()))
    assert errors(run(2, member)) == [(MismatchError, kept)] * 2
