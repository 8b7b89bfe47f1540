"""What a program that has loaded in other processes leaves when it ends."""

import subprocess
import sys

import psutil
import pytest

# Its last line is the test's; then it ends as a program does that has used a loader.
PROGRAM = """
import os, signal
from multiprocessing import forkserver, resource_tracker
import popdist.sdk
popdist.sdk.install()
from poptorch.data.helper_processes import end_helpers_at_exit

forkserver.ensure_running()
end_helpers_at_exit()
pids = [forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid]
print(*pids, flush=True)
"""

WAIT_FOR_ALL = """
for pid in pids:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
"""
LET_ALL_END = """
for pid in pids:
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
"""


@pytest.mark.parametrize(
    "last",
    ["", LET_ALL_END, WAIT_FOR_ALL],
    ids=["they run", "they have ended", "they have been waited for"],
)
def test_the_helpers_of_multiprocessing_end_before_the_program(last: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM + last],
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    pids = [int(pid) for pid in ran.stdout.split()]
    assert len(pids) == 2
    assert not any(map(psutil.pid_exists, pids))
