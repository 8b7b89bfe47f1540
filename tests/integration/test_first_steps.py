"""What a newcomer does first, on every MPI."""

import pytest
from conftest import Poprun

pytestmark = pytest.mark.mpi


def test_the_guides_check_prints_the_line_twice_and_nothing_else(
    poprun: Poprun, every_mpirun: str
) -> None:
    ran = poprun(
        "--mpirun",
        every_mpirun,
        *("--num-instances", "2", "--num-replicas", "2", "--offline-mode=1"),
        *("echo", "Hello world!"),
    )

    assert (ran.code, ran.stdout, ran.stderr) == (0, "Hello world!\n" * 2, "")
