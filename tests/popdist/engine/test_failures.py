from typing import Any

import pytest

from popdist.engine.failures import (
    Ending,
    ErrorFields,
    describe_call,
    error_of,
    explain,
    failed,
    fields_of,
    unusable,
)
from popdist.engine.spec.dtypes import DTYPES, REDUCTIONS
from popdist.engine.spec.operations import NO_PRELUDE, Operation, Status, number_of
from popdist.errors import (
    CollectiveAbortedError,
    CollectiveTimeoutError,
    GroupUnusableError,
    MismatchError,
    PeerLostError,
    PopdistError,
)
from tests.popdist.engine.members import group_of

BARRIER = (Operation.BARRIER, 0, 0, 0, 0, 0, 0, 0)


def call(
    operation: Operation,
    *,
    root: int = 0,
    name: int = 0,
    how: int = 0,
    prelude_to: Operation = NO_PRELUDE,
) -> Any:
    reduction = REDUCTIONS["max"] if "REDUCE" in operation.name else 0
    dtype = DTYPES["int16"]
    return (operation, dtype, reduction, how, root, 20, name, prelude_to)


@pytest.mark.parametrize(
    ("described", "words"),
    [
        (BARRIER, "barrier"),
        ((*BARRIER[:-2], number_of("a name"), 0), "barrier named 'a name'"),
        ((*BARRIER[:-2], number_of(None), 0), "barrier"),
        (call(Operation.ALL_REDUCE), "all_reduce (max, oneshot) of 20 int16"),
        (call(Operation.ALL_REDUCE, how=1), "all_reduce (max, direct) of 20 int16"),
        (call(Operation.ALL_REDUCE, how=2), "all_reduce (max, ring) of 20 int16"),
        (
            call(Operation.ALL_REDUCE, name=1 << 63),
            "all_reduce (max, oneshot) of 20 int16 under another name",
        ),
        (
            call(Operation.REDUCE, root=3, how=1),
            "reduce (max, direct) of 20 int16 with root on instance 33",
        ),
        (call(Operation.REDUCE_SCATTER), "reduce_scatter (max) of 20 int16"),
        (call(Operation.ALL_GATHER), "all_gather of 20 int16"),
        (call(Operation.ALL_GATHER, prelude_to=Operation.GATHER), "gather"),
        (call(Operation.BROADCAST, prelude_to=Operation.SCATTER), "scatter"),
        (
            call(Operation.BROADCAST, root=1),
            "broadcast of 20 int16 with root on instance 31",
        ),
        (call(Operation.GATHER, root=1), "gather of 20 int16 with root on instance 31"),
        (
            call(Operation.SCATTER, root=1),
            "scatter of 20 int16 with root on instance 31",
        ),
        (call(Operation.ALL_TO_ALL), "all_to_all of 20 int16"),
        (call(Operation.SEND, root=4), "send of 20 int16 to instance 34"),
        (call(Operation.RECEIVE, root=4), "recv of 20 int16 from instance 34"),
    ],
)
def test_calls_are_told_as_the_program_made_them(described: Any, words: str) -> None:
    assert describe_call(described, range(30, 35)) == words


def ending(reason: Status, error: PopdistError | None = None) -> Ending:
    fields = ErrorFields(reason, "") if error is None else fields_of(error)
    return (reason, 0, 1, 7, call(Operation.BROADCAST), BARRIER, fields)


def test_a_host_that_does_not_answer_is_not_said_to_have_ended() -> None:
    error = explain(ending(Status.PEER_LOST), range(30, 35), 2.5, silence=5)

    assert isinstance(error, PeerLostError)
    assert error.instances == (31,)
    assert str(error) == (
        "Instance 31 has not answered for 5 s, while instance 30 needed it for "
        "broadcast of 20 int16 with root on instance 30. Its host or the network to it "
        "has failed, or stood still: check both."
    )


@pytest.mark.parametrize(
    ("reason", "error", "message"),
    [
        (
            Status.PEER_LOST,
            PeerLostError,
            "Instance 31 has ended, or closed the group, while instance 30 needed it "
            "for broadcast of 20 int16 with root on instance 30. Look above for its "
            "last output.",
        ),
        (
            Status.TIMED_OUT,
            CollectiveTimeoutError,
            "Instance 31 did not take its part in broadcast of 20 int16 with root on "
            "instance 30 within 2.5 s, so instance 30 gave up. Look at what it does "
            "instead; if it was only slow, raise POPDIST_TIMEOUT.",
        ),
        (
            Status.MISMATCH,
            MismatchError,
            "Tensor layouts did not match on all instances: instance 30 came to "
            "broadcast of 20 int16 with root on instance 30, but instance 31 came to "
            "barrier. All instances must make the same calls in the same order.",
        ),
        (
            Status.STOPPED,
            CollectiveAbortedError,
            "Instance 30 was interrupted in broadcast of 20 int16 with root on "
            "instance 30, which ended it for all.",
        ),
        (Status.END_REQUESTED, MismatchError, "In words of its own."),
    ],
)
def test_each_way_to_end_has_an_error_with_the_instances_numbers(
    reason: Status, error: type[Exception], message: str
) -> None:
    found = explain(
        ending(reason, MismatchError("In words of its own.")), [30, 31], 2.5
    )

    assert type(found) is error
    assert str(found) == message


def test_the_error_of_a_lost_peer_has_its_number() -> None:
    found = explain(ending(Status.PEER_LOST), [30, 31], 2.5)

    assert isinstance(found, PeerLostError)
    assert found.instances == (31,)


def test_a_group_that_ended_says_in_which_call() -> None:
    found = unusable(ending(Status.PEER_LOST), [30, 31])

    assert isinstance(found, GroupUnusableError)
    assert str(found) == (
        "This group ended in call 7, broadcast of 20 int16 with root on "
        "instance 30, for which instance 30 found: peer_lost. Let the first error end "
        "the program, and start the job again."
    )


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            MemoryError("No memory\0\udcff."),
            "Instance 30 failed in gather, which ended it for all: MemoryError: No "
            "memory ?.",
        ),
        (
            KeyboardInterrupt(),
            "Instance 30 was interrupted in gather, which ended it for all.",
        ),
    ],
    ids=repr,
)
def test_a_member_that_fails_on_its_own_is_reported_to_all(
    error: BaseException, message: str
) -> None:
    asked = ending(Status.END_REQUESTED, failed(30, "gather", error))

    found = explain(asked, [30, 31], 2.5)
    assert type(found) is CollectiveAbortedError
    assert str(found) == message
    assert f"instance 30 found: {message} Let the" in str(unusable(asked, [30, 31]))


@pytest.mark.parametrize(
    "error",
    [
        CollectiveAbortedError("It failed."),
        CollectiveTimeoutError("It was late."),
        MismatchError("It differs."),
        PeerLostError("They died.", range(20)),
    ],
    ids=repr,
)
def test_an_error_keeps_its_class_message_and_instances_in_its_fields(
    error: PopdistError,
) -> None:
    group = group_of("alone", 0, 1)
    comm = group.transport.core.comm
    comm.end(*fields_of(error))
    *_, fields = comm.ending()

    found = error_of(ErrorFields(*fields))

    assert (type(found), str(found)) == (type(error), str(error))
    if isinstance(error, PeerLostError):
        # The core has room for so many.
        assert found.instances == tuple(range(15))


def test_names_have_numbers_that_are_never_that_of_no_name() -> None:
    numbers = [number_of(name) for name in ("", "a", "b", "\udcff", "ä" * 10_000)]

    assert number_of(None) == 0
    assert number_of("a") == numbers[1]
    assert len(set(numbers)) == 5
    assert all(0 < number < 1 << 64 for number in numbers)
