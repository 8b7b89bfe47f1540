"""What a program that has loaded in other processes leaves when it ends."""

import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

# Its last line is the test's; then it ends as a program does that has used a loader.
PROGRAM = """
import os, signal
from multiprocessing import forkserver, resource_tracker
import popdist.sdk
popdist.sdk.install()
from poptorch.data import helper_processes

# A helper that still starts, on a busy machine, ends when it has.
helper_processes.GRACE_S = 200
forkserver.ensure_running()
helper_processes.end_helpers_at_exit()
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
def test_the_helpers_of_multiprocessing_end_before_the_program(
    last: str, tmp_path: Path
) -> None:
    # A pipe would have its end only with the end of the helpers, which have it, too.
    with open(tmp_path / "said", "w+") as said:
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM + last],
            stdout=said,
            stderr=subprocess.STDOUT,
            timeout=200,
        )
        said.seek(0)
        text = said.read()

    assert ran.returncode == 0, text
    assert re.fullmatch(r"\d+ \d+\n", text)
    assert not any(psutil.pid_exists(int(pid)) for pid in text.split())
