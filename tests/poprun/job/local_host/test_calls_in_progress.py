"""The calls that an instance is in, as they are seen from outside."""

import os
import time

import numpy as np
import pytest
from conftest import wait_for

from popdist import call_records as records
from poprun.job.local_host.calls_in_progress import CallInProgress, read_calls
from tests.popdist.engine.members import Me, Members

ONES = np.ones(10, np.float32)


def test_a_call_that_waits_is_seen_with_who_is_missing() -> None:
    def member(me: Me) -> None:
        group = me.join(instances=(4, 5, 6))
        group.barrier()
        me.say("here")
        if me.rank:
            me.hear()
        group.all_reduce(ONES)
        me.hear()

    def calls_of(member: int) -> CallInProgress:
        [call] = read_calls(members.pids[member])
        return call

    with Members(3, member) as members:
        members.hear_all()
        wait_for(lambda: calls_of(0).missing == (5, 6), "the call")
        first = calls_of(0)
        members.tell(2, "go")
        wait_for(lambda: calls_of(0).missing == (5,), "the call")
        waiting, other = calls_of(0), calls_of(1)
        members.tell(1, "go")
        wait_for(lambda: calls_of(0).operation == "", "the call")
        over = calls_of(0)
        for rank in range(3):
            members.tell(rank, "end")
        members.finish()

    assert (waiting.operation, waiting.nbytes, waiting.number) == ("all_reduce", 40, 2)
    assert (waiting.waits_for, waiting.members) == (5, (4, 5, 6))
    assert first.waits_since is not None
    assert first.waits_since <= time.monotonic()
    assert (waiting.num_calls, waiting.total_bytes) == (2, 40)
    assert (other.operation, other.missing, other.num_calls) == ("", (), 1)
    assert (over.waits_since, over.waits_for, over.missing) == (None, None, ())


def test_a_process_without_groups_is_in_no_call() -> None:
    assert read_calls(os.getpid()) == []


def test_a_process_that_is_not_there_is_in_no_call() -> None:
    assert read_calls(1 << 22) == []


def test_a_file_in_memory_of_the_same_name_is_none_of_ours() -> None:
    descriptor = os.memfd_create("popdist-arena")
    os.write(descriptor, bytes(10000))
    try:
        assert read_calls(os.getpid()) == []
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("each", "from_end"),
    [
        (records.CALLS_AT - 1, 5000),
        (records.CALLS_AT, 5000),
        (records.CALLS_AT + 1, 5000),
        (records.CALLS_AT + records.CALL.size, 1 << 40),
        # Enough to use up the memory of the reader, who would set it aside first.
        ((1 << 32) - records.CALLS_AT, 5000),
    ],
)
def test_an_arena_that_its_program_has_overwritten_shows_no_call(
    each: int, from_end: int
) -> None:
    end = records.BOARD_END.pack(records.BOARD_MAGIC, 1, each, from_end)
    activity = records.ACTIVITY.pack(os.getpid(), 0, 1, 0, 0, 0, -1, bytes(32))
    descriptor = os.memfd_create("popdist-arena")
    board = bytes(5000) + activity.ljust(5000 - len(end), b"\0") + end
    os.write(descriptor, board)
    try:
        assert read_calls(os.getpid()) == []
    finally:
        os.close(descriptor)
