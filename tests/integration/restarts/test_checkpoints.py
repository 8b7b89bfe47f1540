"""examples/restart.py: a training that is killed ends as one that is not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from conftest import Poprun, wait_for
from deaths import command_line

EXAMPLE = Path(__file__).parents[3] / "examples" / "restart.py"
JOB = ("--mpirun", "local", "-n", "2")
STEPS = "40"
# The example, which stops in the first attempt when it has written a checkpoint.
STOPS = f"""
import os, runpy, sys, time

def pause(seconds):
    if os.environ["POPDIST_RESTART_COUNT"] == "0" and os.path.exists(sys.argv[1]):
        sleep(1000)

sleep, time.sleep = time.sleep, pause
sys.path.insert(0, {str(EXAMPLE.parent)!r})
runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")
"""


def weights(path: Path) -> list[bytes]:
    with np.load(path) as file:
        return [file[name].tobytes() for name in file.files]


def expected(poprun: Poprun) -> list[bytes]:
    """Return what a training without a failure ends with."""
    ran = poprun(*JOB, "python", str(EXAMPLE), "smooth.npz", STEPS)
    assert ran.code == 0, ran.stderr
    return weights(poprun.directory / "smooth.npz")


def start(poprun: Poprun, *options: str) -> "subprocess.Popen[bytes]":
    """Start a training that stops, and return when it has written its checkpoint."""
    script = poprun.script("stops.py", STOPS)
    process = poprun.start(*JOB, *options, "python", script, "rough.npz", STEPS)
    wait_for((poprun.directory / "rough.npz").exists, "the first checkpoint")
    return process


def kill_an_instance(poprun_pid: int) -> None:
    for child in psutil.Process(poprun_pid).children(recursive=True):
        if command_line(child.pid)[1:2] == ["stops.py"]:
            os.kill(child.pid, signal.SIGKILL)
            return
    pytest.fail("there is no instance")


def test_an_instance_is_killed(poprun: Poprun) -> None:
    process = start(poprun, "--max-restarts", "1")
    kill_an_instance(process.pid)
    out, err = process.communicate(timeout=200)

    assert process.returncode == 0, err
    begins = [line for line in out.decode().splitlines() if "begins" in line]
    assert begins == ["attempt 0 begins at step 0", "attempt 1 begins at step 10"]
    assert weights(poprun.directory / "rough.npz") == expected(poprun)


def test_poprun_is_killed_and_started_again_as_systemd_does(poprun: Poprun) -> None:
    process = start(poprun)
    process.kill()
    process.communicate(timeout=200)
    ran = poprun(*JOB, "python", str(EXAMPLE), "rough.npz", STEPS)

    assert ran.code == 0, ran.stderr
    assert ran.stdout.startswith("attempt 0 begins at step 10\n")
    assert weights(poprun.directory / "rough.npz") == expected(poprun)


def test_a_file_that_is_no_checkpoint_is_refused(poprun: Poprun) -> None:
    (poprun.directory / "rough.npz").write_text("PK nonsense")
    ran = subprocess.run(
        [sys.executable, str(EXAMPLE), "rough.npz"],
        cwd=poprun.directory,
        env=poprun.environ,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 1
    assert "rough.npz is no checkpoint" in ran.stderr


def test_without_the_file_it_says_how_to_name_one() -> None:
    ran = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        stderr=subprocess.PIPE,
        text=True,
        timeout=200,
        check=False,
    )

    assert ran.returncode == 2
    assert ran.stderr.startswith("usage: restart.py CHECKPOINT [STEPS")
    assert "poprun -n 4 python examples/restart.py checkpoint.npz" in ran.stderr
