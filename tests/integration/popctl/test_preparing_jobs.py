"""popctl with jobs that wait for hosts or for IPUs: no instance has been started."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import BIN, Poprun, wait_for

from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.rules import presets

POPCTL = str(BIN / "popctl")
LOCAL = ("--mpirun", "local")


@pytest.fixture
def one_rack(vipu_inventory: Path) -> None:
    """Let there be 64 IPUs."""
    inventory = EmbeddedInventory(vipu_inventory, host=os.uname().nodename)
    inventory.create_cluster(presets.preset("pod64", "c64"))
    inventory.close()


def popctl(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([POPCTL, *words], capture_output=True, text=True, timeout=200)


def wait_until_listed(process: "subprocess.Popen[bytes]") -> str:
    """Wait until a job waits, and return its id."""
    listed: list[str] = []

    def is_listed() -> bool:
        assert process.poll() is None, process.stderr and process.stderr.read()
        views = json.loads(popctl("ps", "--json").stdout)
        own = [view for view in views if view["pid"] == process.pid]
        listed[:] = [v["id"] for v in own if v["phase"] == "preparing" and v["step"]]
        return bool(listed)

    wait_for(is_listed, "the job in the list")
    return listed[0]


def start_job_that_waits(poprun: Poprun, *words: str) -> "subprocess.Popen[bytes]":
    """Start a job for which another one leaves no IPUs until there is a file."""
    hold = "touch holds; while test ! -e free; do sleep 0.05; done"
    poprun.start(*LOCAL, "--num-replicas=64", "sh", "-c", hold)
    wait_for((poprun.directory / "holds").exists, "the first job")
    return poprun.start(*LOCAL, "--num-replicas=8", "--wait-for-ipus", *words)


@pytest.mark.usefixtures("one_rack")
def test_a_job_that_waits_for_ipus_is_listed_and_becomes_one_that_runs(
    poprun: Poprun,
) -> None:
    waits = start_job_that_waits(poprun, "echo", "it has them")
    job = wait_until_listed(waits)
    shown, top = popctl("ps"), popctl("top", "--once", job)
    logs, dump = popctl("logs", job), popctl("dump", "--signal", job)
    attached = subprocess.Popen(
        [POPCTL, "attach", job, "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert attached.stderr
    assert attached.stderr.readline().startswith("popctl: Instance 0 of job ")
    (poprun.directory / "free").touch()

    assert attached.communicate(timeout=200)[0] == "it has them\n"
    assert waits.wait(timeout=200) == 0
    [line] = [line for line in shown.stdout.splitlines() if job[:8] in line]
    assert "0 of 1" in line
    assert "waiting for IPUs" in line
    assert (top.returncode, top.stdout.splitlines()[0]) == (
        0,
        f"Job {job[:8]}: echo 'it has them'",
    )
    assert logs.stderr == (
        f"popctl: error: Job {job[:8]} has not started any instance yet.\n"
    )
    assert "it has no Python stacks now." in dump.stderr


@pytest.mark.usefixtures("one_rack")
def test_a_job_that_waits_for_ipus_is_stopped(poprun: Poprun) -> None:
    waits = start_job_that_waits(poprun, "touch", "started")
    job = wait_until_listed(waits)
    stopped = popctl("stop", job)

    assert waits.wait(timeout=200) == 130
    (poprun.directory / "free").touch()
    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert f"Job {job[:8]} has ended with exit code 130. Stopped by popctl" in (
        stopped.stdout
    )
    assert not (poprun.directory / "started").exists()
    # Its place in the queue is free: another job gets the IPUs.
    assert poprun.started[0].wait(timeout=200) == 0
    assert poprun(*LOCAL, "--num-replicas=64", "true").code == 0
