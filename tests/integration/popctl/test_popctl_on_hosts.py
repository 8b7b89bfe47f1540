"""popctl where the poprun of a job on two hosts runs."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from beds.bed import Bed
from beds.host import Host
from conftest import wait_for

pytestmark = pytest.mark.mpi

PROGRAM = """
import os, time
held = bytearray(32 << 20)
held[::4096] = b"x" * len(held[::4096])
def wait_for_stop():
    while not os.path.exists("/tmp/stop"):
        # A whole line: popctl attaches between any two writes.
        os.write(1, f"on {os.uname().nodename}\\n".encode())
        time.sleep(0.1)
wait_for_stop()
"""


@pytest.fixture
def here(bed: Bed) -> Iterator[Host]:
    """The host on which a job of two hosts is started."""
    yield bed.hosts[0]
    for host in bed.hosts[:2]:
        host.output("rm", "-f", "/tmp/stop")


def start(here: Host) -> "subprocess.Popen[bytes]":
    words = ["poprun", "--mpirun", "local", "--offline-mode=yes", "--host", "h0,h1"]
    return here.start(
        *(*words, "-n", "2", "python3", "-c", PROGRAM),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def show(here: Host) -> dict[str, Any]:
    """Return the only job of the host, with what its instances use."""
    if not json.loads(here.output("popctl", "ps", "--json")):
        return {}
    view: dict[str, Any] = json.loads(here.output("popctl", "top", "--json"))
    return view


def test_the_instances_of_all_hosts_are_shown_dumped_and_stopped(here: Host) -> None:
    process = start(here)
    job: dict[str, Any] = {}

    def are_in_their_loops() -> bool:
        "Return whether both instances printed, and it is known what they use."
        job.update(show(here))
        return job.get("num_running") == 2 and all(
            instance["last_line"] == f"on {instance['host']}"
            and (instance["memory_kib"] or 0) > 32 << 10
            and (instance["cpu_seconds"] or 0) > 0
            for instance in job["instances"]
        )

    wait_for(are_in_their_loops, "the programs and what they use")
    assert job["hosts"] == ["h0", "h1"]
    assert [i["host"] for i in job["instances"]] == ["h0", "h1"]
    assert [i["is_local"] for i in job["instances"]] == [True, False]

    dumped = here.output("popctl", "dump", "--signal")
    assert dumped.count("in wait_for_stop") == 2

    attached = here.start("popctl", "attach", "1", stdout=subprocess.PIPE)
    assert attached.stdout
    assert attached.stdout.readline() == b"on h1\n"
    attached.terminate()
    attached.communicate()

    assert "has ended with exit code 130" in here.output("popctl", "stop")
    _, err = process.communicate(timeout=200)
    assert process.returncode == 130
    assert b"Stopped by popctl (PID " in err.splitlines()[-1]


def test_another_host_of_the_job_does_not_control_it(bed: Bed, here: Host) -> None:
    process = start(here)
    wait_for(lambda: show(here).get("num_running") == 2, "the instances")

    there = bed.hosts[1].output("popctl", "ps", "--json")
    for host in bed.hosts[:2]:
        host.output("touch", "/tmp/stop")
    _, err = process.communicate(timeout=200)

    assert json.loads(there) == []
    assert (process.returncode, err) == (0, b"")
