"""The calls that an instance is in, as they are seen from outside."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from conftest import wait_for

from popdist import call_records as records
from poprun.host.calls_in_progress import CallInProgress, read_calls
from tests.popdist.engine.members import Me, Members

ONES = np.ones(10, np.float32)
OwnCalls = Callable[[], list[CallInProgress]]


@pytest.fixture
def own_calls() -> OwnCalls:
    """Read the calls of this process; earlier tests may have left groups in it."""
    earlier = read_calls(os.getpid())
    return lambda: [call for call in read_calls(os.getpid()) if call not in earlier]


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
    assert waiting.members == (4, 5, 6)
    assert first.waits_since is not None
    assert first.waits_since <= time.monotonic()
    assert (waiting.num_calls, waiting.total_bytes) == (2, 40)
    assert (other.operation, other.missing, other.num_calls) == ("", (), 1)
    assert (over.waits_since, over.missing) == (None, ())


TORCH = """
import os, sys, traceback
import torch, torch.distributed as dist
store = dist.FileStore(sys.argv[1], 2)
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
pair = dist.new_group([0, 1])
dist.barrier(group=pair)
dist.all_reduce(torch.ones(3))
if rank:
    print("waits", flush=True)
    sys.stdin.readline()
work = dist.broadcast(torch.ones(3), 1, async_op=True)
dist.all_reduce(torch.ones(3))
work.wait()
model = torch.nn.Linear(2, 2, bias=False)
model = torch.nn.parallel.DistributedDataParallel(model, process_group=pair)
model(torch.ones(1, 2)).sum().backward()
with model.no_sync():
    model(torch.ones(1, 2)).sum().backward()
if rank:
    os._exit(0)
try:
    dist.all_reduce(torch.ones(3))
except Exception:
    print("torch_calls" in traceback.format_exc(), flush=True)
sys.stdin.readline()
"""


def test_a_call_of_gloo_is_seen_with_its_number_in_its_group(tmp_path: Path) -> None:
    def start(rank: int) -> "subprocess.Popen[str]":
        variables = {
            **{"POPDIST_NUM_TOTAL_REPLICAS": "2", "POPDIST_CONTROL": control},
            **{"RANK": str(rank), "WORLD_SIZE": "2"},
        }
        return subprocess.Popen(
            [sys.executable, "-c", TORCH, str(tmp_path / "store")],
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def calls_of(rank: int) -> list[CallInProgress]:
        return read_calls(processes[rank].pid)

    control = f"@test-{os.urandom(8).hex()}/key"
    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as stack:
        listener.bind(f"\0{control[1:].partition('/')[0]}")
        listener.listen()
        processes = [stack.enter_context(start(rank)) for rank in (0, 1)]
        stack.callback(lambda: [each.kill() for each in processes])
        # The first call counts from its beginning: only the word says that it is over.
        assert processes[1].stdout is not None
        assert processes[1].stdout.readline() == "waits\n"
        # Its number is written before the rest.
        wait_for(
            lambda: ("all_reduce", 3) in [(c.operation, c.number) for c in calls_of(0)],
            "the call",
        )
        pair, waiting = calls_of(0)
        _, other = calls_of(1)
        processes[1].communicate("go\n", timeout=200)
        assert processes[0].stdout is not None
        frames = processes[0].stdout.readline()
        pair_over, over = calls_of(0)

    assert (waiting.operation, waiting.number, waiting.num_calls) == (
        "all_reduce",
        3,
        3,
    )
    assert (waiting.members, waiting.missing) == ((0, 1), ())
    assert waiting.waits_since is not None
    assert waiting.waits_since <= time.monotonic()
    assert (other.operation, other.num_calls, other.group) == ("", 1, waiting.group)
    # The barrier of another group, and later a backward pass that reduces there.
    assert (pair.num_calls, pair.operation, pair.waits_since) == (1, "", None)
    assert pair.group not in (0, waiting.group)
    assert (over.operation, over.num_calls, pair_over.num_calls) == ("", 4, 2)
    # The frames of what observes it are not in the program's tracebacks.
    assert frames == "False\n"


def test_a_file_that_is_none_of_ours_is_in_no_call(own_calls: OwnCalls) -> None:
    for size in (0, 100, records.TORCH_BYTES):
        fd = os.memfd_create(records.TORCH_NAME)
        os.write(fd, os.urandom(size))
        try:
            assert own_calls() == []
        finally:
            os.close(fd)


def torch_file(operation: bytes) -> int:
    """Return a descriptor of a file in which this process waits in a group."""
    board = bytearray(records.TORCH_BYTES)
    records.TORCH_HEADER.pack_into(board, 0, records.TORCH_MAGIC, os.getpid())
    at = records.TORCH_HEADER.size
    wait_at, members_at = at + records.TORCH_WAIT_AT, at + records.TORCH_MEMBERS_AT
    records.TORCH_WAIT.pack_into(board, wait_at, 1, 1, operation)
    records.TORCH_MEMBERS.pack_into(board, members_at, b"\3", b"0")
    fd = os.memfd_create(records.TORCH_NAME)
    os.write(fd, board)
    return fd


@pytest.mark.parametrize("operation", [b"\x1b[31mred", b"\xff", b"a\0b", b"a\nb"])
def test_the_name_of_a_call_of_gloo_has_no_control_characters(
    operation: bytes, own_calls: OwnCalls
) -> None:
    fd = torch_file(operation)
    try:
        assert own_calls() == []
    finally:
        os.close(fd)


def test_one_file_of_gloo_is_read_however_many_there_are(own_calls: OwnCalls) -> None:
    fds = [torch_file(b"barrier") for _ in range(3)]
    try:
        assert [call.operation for call in own_calls()] == ["barrier"]
    finally:
        for fd in fds:
            os.close(fd)


def test_a_process_without_groups_is_in_no_call() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert read_calls(process.pid) == []
        process.kill()


def test_a_process_that_is_not_there_is_in_no_call() -> None:
    assert read_calls(1 << 22) == []


def test_a_file_in_memory_of_the_same_name_is_none_of_ours(own_calls: OwnCalls) -> None:
    descriptor = os.memfd_create("popdist-arena")
    os.write(descriptor, bytes(10000))
    try:
        assert own_calls() == []
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
    each: int, from_end: int, own_calls: OwnCalls
) -> None:
    end = records.BOARD_END.pack(records.BOARD_MAGIC, 1, each, from_end)
    activity = records.ACTIVITY.pack(os.getpid(), 0, 1, 0, 0, 0, -1, bytes(32))
    descriptor = os.memfd_create("popdist-arena")
    board = bytes(5000) + activity.ljust(5000 - len(end), b"\0") + end
    os.write(descriptor, board)
    try:
        assert own_calls() == []
    finally:
        os.close(descriptor)
