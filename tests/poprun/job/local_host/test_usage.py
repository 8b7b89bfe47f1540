import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from poprun.job.local_host import usage
from poprun.job.local_host.usage import UsageReader

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

    [(rank, (_, memory_kib, num_processes))] = UsageReader().read({pid: 5}).items()

    assert (rank, num_processes) == (5, 2)
    assert memory_kib > 64 << 10


def test_the_cpu_time_of_children_that_have_ended_counts(start) -> None:  # type: ignore[no-untyped-def]
    pid = start(WITH_REAPED_CHILD, 1)

    cpu_s, _, num_processes = UsageReader().read({pid: 0})[0]

    assert cpu_s >= 0.2  # the kernel counts ticks
    assert num_processes == 1


def test_an_instance_that_has_ended_is_left_out() -> None:
    process = subprocess.Popen(["true"])
    process.wait()

    assert UsageReader().read({process.pid: 0}) == {}


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
