"""MPICH's files in places that all users share: those of other jobs stay."""

import glob
import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest
from conftest import Poprun, wait_for
from deaths import Doomed

from poprun.helpers.job_files import open_files

pytestmark = pytest.mark.mpi

PATTERNS = ("/dev/shm/mpich_shm_*", "/tmp/hydra_hwloc_xmlfile_*")


def files() -> set[str]:
    return {path for pattern in PATTERNS for path in glob.glob(pattern)}


def files_of(job: Doomed) -> set[str]:
    """Return those that processes of a job have open: other tests make some, too."""
    below = psutil.Process(job.process.pid).children(recursive=True)
    opened = {os.fsdecode(path) for p in below for path in open_files(p.pid)}
    return files() & opened


@pytest.fixture
def neighbours() -> Iterator[list[str]]:
    """Files that look like MPICH's, of a job that poprun does not know."""
    paths = [pattern.replace("*", f"n{os.getpid():x}e0") for pattern in PATTERNS]
    for path in paths:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    yield paths
    for path in paths:
        os.unlink(path)


@pytest.mark.parametrize("victim", ["poprun", "mpirun", "proxy", "shim 1", "rank 0"])
def test_what_a_killed_job_leaves_is_removed_and_a_neighbours_stays(
    poprun: Poprun, hydra: str, neighbours: list[str], victim: str
) -> None:
    job = Doomed(poprun, hydra, "ranks", "--grace", "0.3")
    made = files_of(job)
    assert {path.rpartition("_")[0][:12] for path in made} == {
        "/dev/shm/mpi",
        "/tmp/hydra_h",
    }

    if victim == "rank 0":
        job.programs()[0].kill()
    else:
        job.kill(victim)
    job.end()

    wait_for(lambda: not made & files(), "the removal of the job's files")
    assert set(neighbours) <= files()


def test_the_second_guard_removes_what_only_the_first_could_see(
    poprun: Poprun, hydra: str, neighbours: list[str]
) -> None:
    job = Doomed(poprun, hydra, "ranks", "--grace", "0.3")
    made = files_of(job)

    # All who had the files open die while poprun is stopped.
    job.kill("poprun", signal.SIGSTOP)
    for victim in [job.find("guard"), job.find("proxy"), *job.programs()]:
        with suppress(psutil.NoSuchProcess):  # the death of another took it along
            victim.kill()
    job.kill("poprun", signal.SIGCONT)
    job.end()

    assert made
    wait_for(lambda: not made & files(), "the removal of the job's files")
    assert set(neighbours) <= files()
