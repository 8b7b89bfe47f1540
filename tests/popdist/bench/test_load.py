"""Busy processes end with the bench, however it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from popdist.bench.load import busy_processes


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def test_they_use_processor_time_on_all_cores_until_the_end() -> None:
    with busy_processes(2) as pids:
        before = [_cpu_ticks(pid) for pid in pids]
        deadline = time.monotonic() + 200
        while any(
            _cpu_ticks(pid) <= then for pid, then in zip(pids, before, strict=True)
        ):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        masks = [os.sched_getaffinity(pid) for pid in pids]

    assert len(pids) == 2
    assert all(mask >= os.sched_getaffinity(0) for mask in masks)
    assert not any(_runs(pid) for pid in pids)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_they_end_when_their_parent_is_ended(number: signal.Signals) -> None:
    program = (
        "import time\n"
        "from popdist.bench.load import busy_processes\n"
        "with busy_processes(2) as pids:\n"
        "    print(*pids, flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2
        parent.send_signal(number)
        parent.wait(200)
    deadline = time.monotonic() + 200
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)
