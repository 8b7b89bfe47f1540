"""Jobs that wait for emulated IPUs with --wait-for-ipus, and how they end."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Poprun, wait_for
from vipu_servers import serving

from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.rules import presets

LOCAL = ("--mpirun", "local", "--num-instances=1")


@pytest.fixture(params=["embedded", "server"])
def inventory(
    request: pytest.FixtureRequest, vipu_inventory: Path, poprun: Poprun, tmp_path: Path
) -> Iterator[EmbeddedInventory]:
    """One rack, of this user or of a server."""
    host = os.uname().nodename
    if request.param == "embedded":
        opened = EmbeddedInventory(vipu_inventory, host=host)
        opened.create_cluster(presets.preset("pod64", "c64"))
        yield opened
        opened.close()
        return
    with serving(tmp_path / "server.db") as server:
        poprun.environ["IPUOF_VIPU_API_HOST"] = "127.0.0.1"
        poprun.environ["IPUOF_VIPU_API_PORT"] = str(server.port)
        opened = EmbeddedInventory(tmp_path / "server.db", host=host)
        yield opened
        opened.close()


def holding(poprun: Poprun, replicas: int) -> tuple["subprocess.Popen[bytes]", Path]:
    """Start a job that holds IPUs until its file is removed."""
    file = poprun.directory / "holds"
    script = f"touch {file}; while [ -e {file} ]; do sleep 0.1; done"
    words = (f"--num-replicas={replicas}", "--vipu-partition=first", "sh", "-c", script)
    job = poprun.start(*LOCAL, *words)
    wait_for(file.exists, "the job that holds the IPUs")
    return job, file


def waiting(
    poprun: Poprun, inventory: EmbeddedInventory, replicas: int, *words: str
) -> "subprocess.Popen[bytes]":
    """Start a job, and wait until it waits for IPUs."""
    before = len(inventory.list_waiting())
    job = poprun.start(*LOCAL, f"--num-replicas={replicas}", "--wait-for-ipus", *words)
    wait_for(lambda: len(inventory.list_waiting()) == before + 1, "a job that waits")
    return job


def test_jobs_run_in_the_order_in_which_they_began_to_wait(
    poprun: Poprun, inventory: EmbeddedInventory
) -> None:
    first, file = holding(poprun, 32)
    order = poprun.directory / "order"
    large = waiting(poprun, inventory, 64, "sh", "-c", f"echo large >> {order}")
    small = waiting(poprun, inventory, 2, "sh", "-c", f"echo small >> {order}")

    file.unlink()

    assert first.wait(200) == large.wait(200) == small.wait(200) == 0
    assert order.read_text() == "large\nsmall\n"
    assert large.stderr is not None
    said = large.stderr.read().decode()
    assert said.startswith(
        "poprun: waiting for IPUs: In use by partition first (32 IPUs, user "
    )
    assert small.stderr is not None
    said = small.stderr.read().decode().splitlines()[0]
    assert said.startswith(
        "poprun: waiting for IPUs: A job waiting for 64 IPUs is ahead of it (user "
    )


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL]
)
def test_a_job_that_is_stopped_while_it_waits_leaves_nothing(
    poprun: Poprun, inventory: EmbeddedInventory, number: signal.Signals
) -> None:
    first, file = holding(poprun, 64)
    large = waiting(poprun, inventory, 64, "--result", "r", "true")
    small = waiting(poprun, inventory, 2, "true")

    large.send_signal(number)

    code, is_killed = large.wait(200), number is signal.SIGKILL
    assert code == (-number if is_killed else 128 + number)
    result = json.loads((poprun.directory / "r").read_text())
    assert result["outcome"] == ("incomplete" if is_killed else "interrupted")
    wait_for(lambda: len(inventory.list_waiting()) == 1, "the queue without it")
    assert len(inventory.list_leases()) == 1
    file.unlink()
    assert first.wait(200) == small.wait(200) == 0
    assert inventory.list_waiting() == inventory.list_leases() == ()
    assert inventory.list_partitions() == ()
