import os
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest
from conftest import wait_for

from poprun.host import usage
from poprun.host.usage import UsageReader
from poprun.wire.events import UsageMeasured
from tests.popdist.engine.members import Me, Members

# A program with a child, which has 64 MiB; each reports when it is ready.
WITH_CHILD = """
import os, sys, time
if os.fork() == 0:
    block = bytearray(64 << 20)
    block[::4096] = b"x" * len(block[::4096])
    print("child", flush=True)
    time.sleep(600)
print("parent", flush=True)
os.wait()
"""
# It uses up CPU time in a child that it has reaped.
WITH_REAPED_CHILD = """
import os, sys, time
if os.fork() == 0:
    while time.process_time() < 0.3: pass
    os._exit(0)
os.wait()
print("reaped", flush=True)
time.sleep(600)
"""


@pytest.fixture
def start() -> Iterator[object]:
    processes = []

    def start(program: str, lines: int) -> int:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        processes.append(process)
        assert process.stdout
        for _ in range(lines):
            process.stdout.readline()
        return process.pid

    yield start
    for process in processes:
        os.killpg(process.pid, 9)
        process.communicate()


def test_an_instance_is_measured_with_the_processes_below_it(start) -> None:  # type: ignore[no-untyped-def]
    pid = start(WITH_CHILD, 2)

    [used] = UsageReader().read({pid: 5})

    assert (used.rank, used.num_processes) == (5, 2)
    assert used.memory_kib > 64 << 10
    assert (used.num_groups, used.operation) == (0, "")


def test_the_cpu_time_of_children_that_have_ended_counts(start) -> None:  # type: ignore[no-untyped-def]
    pid = start(WITH_REAPED_CHILD, 1)

    [used] = UsageReader().read({pid: 0})

    assert used.cpu_s >= 0.2  # the kernel counts ticks
    assert used.num_processes == 1


def test_the_call_that_an_instance_waits_in_is_told() -> None:
    def member(me: Me) -> None:
        group = me.join(instances=(0, 1))
        group.barrier()
        if me.rank:
            me.say("here")
            me.hear()
        group.all_reduce(np.ones(10, np.float32))
        me.hear()

    with Members(2, member) as members:
        members.hear(1)
        waiting, other = members.pids[:2]
        reader = UsageReader()

        def used() -> UsageMeasured:
            [measured] = reader.read({waiting: 0})
            return measured

        wait_for(lambda: used().missing == (1,), "the call")
        first = used()
        [late] = reader.read({other: 1})
        for rank in (1, 0, 1):
            members.tell(rank, "go")
        members.finish()

    assert (first.num_groups, first.num_calls, first.total_bytes) == (1, 2, 40)
    assert (first.operation, first.call_bytes) == ("all_reduce", 40)
    assert 0 < first.waited_s < 1000
    assert (late.operation, late.num_calls, late.waited_s) == ("", 1, 0.0)


def test_an_instance_that_has_ended_is_left_out() -> None:
    process = subprocess.Popen(["true"])
    process.wait()

    assert UsageReader().read({process.pid: 0}) == []


def test_the_machine_is_searched_for_processes_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches = []
    monkeypatch.setattr(usage.processes, "processes", lambda: searches.append(1) or {})
    reader = UsageReader()
    began = time.monotonic()
    for _ in range(20):
        reader.read({os.getpid(): 0})

    assert 1 <= len(searches) <= 1 + (time.monotonic() - began) / 5
