"""An mpirun that hangs, or whose daemons do, keeps no job on several hosts."""

import os
import shlex
import signal
from collections.abc import Callable, Iterator

import pytest
from beds.bed import Bed
from conftest import mpirun_of
from integration.hosts.test_losses import RunningJob

pytestmark = pytest.mark.mpi

DAEMONS = {
    "openmpi5": "bin/prted ",
    "openmpi4": "orted ",
    "hydra": "hydra_pmi_proxy ",
}


@pytest.fixture
def stub(bed: Bed) -> Iterator[Callable[[str], str]]:
    """Return what writes an mpirun, in the directory that the hosts share."""
    path = "/root/mpirun"

    def write(script: str) -> str:
        own = f'#!/bin/sh\n[ "$1" = --version ] && exec {shlex.quote(real)} "$@"\n'
        bed.front.path(path).write_text(own + script)
        bed.front.path(path).chmod(0o755)
        return path

    real = mpirun_of("openmpi5")
    yield write
    bed.front.path(path).unlink()


def test_hosts_on_which_nothing_was_started_are_named(
    bed: Bed, stub: Callable[[str], str]
) -> None:
    ran = bed.front.run(
        *("poprun", "--mpirun", stub("exec sleep 600"), "--offline-mode=yes"),
        *("--host", "h0,h1", "-n", "4", "--start-timeout", "0.5", "true"),
    )

    assert (ran.returncode, ran.stderr) == (
        124,
        "poprun: error: mpirun did not start 4 of 4 instances on h0 and h1 within the "
        "0.5 s of --start-timeout, instance 0 among them.\n",
    )


def test_an_mpirun_that_does_not_end_after_its_last_instance_is_ended(
    bed: Bed, stub: Callable[[str], str]
) -> None:
    path = stub(f'{shlex.quote(mpirun_of("openmpi5"))} "$@"; sleep 600')

    ran = bed.front.run(
        *("poprun", "--mpirun", path, "--offline-mode=yes", "--host", "h0,h1"),
        *("-n", "2", "true"),
    )

    assert (ran.returncode, ran.stderr) == (
        0,
        "poprun: warning: mpirun did not end after its last instance and was killed.\n",
    )


@pytest.mark.parametrize("mpi", DAEMONS)
def test_a_daemon_of_mpirun_that_is_stopped_keeps_no_job(bed: Bed, mpi: str) -> None:
    job = RunningJob(bed, mpi)

    job.send(signal.SIGSTOP, "h1", DAEMONS[mpi])
    os.kill(job.poprun.pid, signal.SIGTERM)

    code, stderr = job.end()
    assert code == 128 + signal.SIGTERM
    assert stderr.endswith("poprun: error: Stopped by SIGTERM.\n")


@pytest.mark.parametrize("mpi", DAEMONS)
def test_a_daemon_of_mpirun_that_is_killed_is_the_cause(bed: Bed, mpi: str) -> None:
    job = RunningJob(bed, mpi)

    job.send(signal.SIGKILL, "h1", DAEMONS[mpi])

    code, stderr = job.end()
    *_, cause = stderr.splitlines()
    assert (code, cause) == (
        125,
        "poprun: error: mpirun's daemon on h1 was killed, and the job with "
        "it. poprun did not do that. Find out what sends SIGKILL: perhaps the kernel, "
        "because memory ran out.",
    )
