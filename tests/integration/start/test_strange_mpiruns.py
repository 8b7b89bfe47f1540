"""mpiruns that are missing, lie, hang or fail: the instances' word counts."""

import re
import shlex

import pytest
from conftest import Poprun

pytestmark = pytest.mark.mpi

TWO = ("--num-instances", "2", "--num-replicas", "2", "--grace", "0.3")


def stub(poprun: Poprun, text: str) -> str:
    """Write a program that stands for mpirun, and return its path."""
    path = poprun.directory / "mpirun"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def around(poprun: Poprun, mpirun: str, after: str) -> str:
    """Write an mpirun that does all that a real one does, and then something more."""
    real = shlex.quote(mpirun)
    return stub(
        poprun,
        f'[ "$1" = --version ] && exec {real} --version\n{real} "$@"\n{after}',
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("exit 0", "is not an mpirun that poprun supports", id="silent"),
        pytest.param(
            "echo rm 9.1", "is not an mpirun that poprun supports", id="another"
        ),
        pytest.param("echo no; exit 1", "cannot be used as mpirun", id="failing"),
        pytest.param("sleep 600", "is not a working mpirun", id="hanging"),
    ],
)
def test_what_is_no_mpirun_is_refused_by_name(
    poprun: Poprun, text: str, words: str
) -> None:
    path = stub(poprun, text)

    ran = poprun("--mpirun", path, *TWO, "true")

    assert (ran.code, ran.stdout) == (125, "")
    assert re.search(rf"poprun: error: {re.escape(path)} .*{words}", ran.stderr)


def test_a_missing_mpirun_is_refused_by_name(poprun: Poprun) -> None:
    ran = poprun("--mpirun", "/nowhere/mpirun", *TWO, "true")

    assert (ran.code, ran.stdout) == (125, "")
    assert "/nowhere/mpirun" in ran.stderr


def test_mpirun_that_dies_at_once_is_named(poprun: Poprun, every_mpirun: str) -> None:
    path = stub(
        poprun,
        f'[ "$1" = --version ] && exec {every_mpirun} --version\n'
        "echo out of order >&2\nexit 3",
    )

    ran = poprun("--mpirun", path, *TWO, "true")

    assert (ran.code, ran.stdout, ran.stderr) == (
        125,
        "",
        "poprun: mpirun printed:\n"
        "    out of order\n"
        "poprun: error: mpirun ended with exit code 3 before it had started any "
        "instance.\n",
    )


def test_mpirun_that_hangs_after_its_last_instance_is_ended(
    poprun: Poprun, every_mpirun: str
) -> None:
    path = around(poprun, every_mpirun, "sleep 600")

    ran = poprun("--mpirun", path, *TWO, "echo", "done")

    assert (ran.code, ran.stdout, ran.stderr) == (
        0,
        "done\ndone\n",
        "poprun: warning: mpirun did not end after its last instance and was killed.\n",
    )


def test_mpirun_that_hides_a_failure_is_not_believed(
    poprun: Poprun, every_mpirun: str
) -> None:
    path = around(poprun, every_mpirun, "exit 0")

    ran = poprun("--mpirun", path, *TWO, "sh", "-c", "exit 5")

    assert ran.code == 5


def test_mpirun_that_fails_after_all_have_succeeded_is_named(
    poprun: Poprun, every_mpirun: str
) -> None:
    path = around(poprun, every_mpirun, "echo cannot end >&2; exit 1")

    ran = poprun("--mpirun", path, *TWO, "echo", "done")

    assert (ran.code, ran.stdout, ran.stderr) == (
        125,
        "done\ndone\n",
        "poprun: mpirun printed:\n    cannot end\npoprun: error: All "
        "instances succeeded, but then mpirun ended with exit code 1.\n",
    )


def test_mpirun_that_starts_nothing_is_not_waited_for(
    poprun: Poprun, every_mpirun: str
) -> None:
    path = stub(
        poprun,
        f'[ "$1" = --version ] && exec {every_mpirun} --version\nsleep 600',
    )

    ran = poprun("--mpirun", path, *TWO, "--start-timeout", "0.5", "true")

    assert (ran.code, ran.stdout, ran.stderr) == (
        124,
        "",
        "poprun: error: mpirun did not start 2 of 2 instances within the 0.5 s of "
        "--start-timeout, instance 0 among them.\n",
    )


def test_sixty_four_short_instances(poprun: Poprun, every_mpirun: str) -> None:
    # Bare mpirun hangs now and then when so many processes end at once.
    ran = poprun(
        *("--quiet", "--mpirun", every_mpirun),
        *("--num-instances", "64", "--num-replicas", "64", "true"),
    )

    assert (ran.code, ran.stdout, ran.stderr) == (0, "", "")


def use_mpi(poprun: Poprun) -> str:
    """Write a program that imports an mpi4py which starts no MPI."""
    (poprun.directory / "mpi4py").mkdir()
    (poprun.directory / "mpi4py" / "__init__.py").touch()
    (poprun.directory / "mpi4py" / "MPI.py").touch()
    return poprun.script("use.py", "from mpi4py import MPI\nprint('done')\n")


def test_mpi4py_under_the_local_launcher_is_warned_of_once(poprun: Poprun) -> None:
    options = ("--mpirun", "local", "--num-instances", "2", "--num-replicas", "2")
    ran = poprun(*options, "python", use_mpi(poprun))

    assert (ran.code, ran.stdout) == (0, "done\n" * 2)
    assert re.fullmatch(
        r"poprun: warning: Instance [01] imports mpi4py, but --mpirun local starts no "
        r"MPI, so each instance is rank 0 of 1\. Use the mpirun of an MPI\.\n",
        ran.stderr,
    )


def test_mpi4py_in_a_single_instance_is_rank_0_of_1_rightly(poprun: Poprun) -> None:
    ran = poprun("--mpirun", "local", "python", use_mpi(poprun))

    assert (ran.code, ran.out, ran.err) == (0, b"done\n", b"")


def test_mpi4py_under_an_mpirun_is_not_warned_of(
    poprun: Poprun, every_mpirun: str
) -> None:
    ran = poprun("--mpirun", every_mpirun, *TWO, "python", use_mpi(poprun))

    assert (ran.code, ran.stdout, ran.stderr) == (0, "done\n" * 2, "")
