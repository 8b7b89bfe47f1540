"""An ordinary user, without a home or any directory that a session would give."""

import subprocess

import pytest
from conftest import POPRUN, Poprun, wait_for

pytestmark = pytest.mark.mpi

# In a namespace of its own the same user has another number and no privileges, and
# can still read what he could read before.
AS_NOBODY = ["unshare", "--user", "--map-user=65534", "--map-group=65534"]


def job(instances: int, mpirun: str) -> list[str]:
    number = str(instances)
    return ["--mpirun", mpirun, "--num-instances", number, "--num-replicas", number]


def run(poprun: Poprun, *words: str) -> "subprocess.CompletedProcess[bytes]":
    names = ("PATH", "POPRUN_TEST")
    return subprocess.run(
        [*AS_NOBODY, POPRUN, *words],
        cwd=poprun.directory,
        env={name: poprun.environ[name] for name in names},
        capture_output=True,
        timeout=200,
    )


def test_the_guides_check_needs_no_root_and_no_home(
    poprun: Poprun, every_mpirun: str
) -> None:
    ran = run(poprun, *job(2, every_mpirun), "--offline-mode=1", "echo", "Hello world!")

    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout == b"Hello world!\nHello world!\n"


def test_mpi_needs_no_root_and_no_home(poprun: Poprun, openmpi5: str) -> None:
    script = poprun.script(
        "sum.py",
        "import os\n"
        "from mpi4py import MPI\n"
        "world = MPI.COMM_WORLD\n"
        "total = world.allreduce(world.rank + 1)\n"
        "print(os.getuid(), world.size, total, 'XDG_RUNTIME_DIR' in os.environ)\n",
    )
    ran = run(poprun, *job(2, openmpi5), "--offline-mode=1", "python", script)

    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout == b"65534 2 3 False\n" * 2


def test_a_job_of_an_ordinary_user_is_ended_whole(
    poprun: Poprun, every_mpirun: str
) -> None:
    names = ("PATH", "POPRUN_TEST")
    process = subprocess.Popen(
        [
            *(*AS_NOBODY, POPRUN, *job(2, every_mpirun)),
            *("sh", "-c", "(setsid sleep 600 &); touch on.$RANK; sleep 600"),
        ],
        cwd=poprun.directory,
        env={name: poprun.environ[name] for name in names},
        stderr=subprocess.DEVNULL,
    )
    for rank in range(2):
        wait_for((poprun.directory / f"on.{rank}").exists, f"instance {rank}")
    process.kill()
    process.wait()

    poprun.footprint.assert_nothing_is_left()
