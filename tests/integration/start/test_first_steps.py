"""What a newcomer does first, on every MPI."""

import json

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


def test_the_topology_is_shown_to_other_programs_by_saying_how(poprun: Poprun) -> None:
    words = ("--mpirun", "local", "--num-instances", "2", "--num-replicas", "4")

    ran = poprun(*words, "--topology-format=json", "true")

    shown = json.loads(ran.stdout)
    assert [i["replicas"] for i in shown["instances"]] == [[0, 1], [2, 3]]
    assert poprun(
        *words, "--topology-format=json", "--print-topology=no", "true"
    ).out == (b"")


def test_what_is_for_other_hosts_is_told_to_have_no_effect_on_one(
    poprun: Poprun,
) -> None:
    ran = poprun("--mpirun", "local", "--distribute-ssh-key=yes", "true")

    assert (ran.code, ran.stderr) == (
        0,
        "poprun: warning: --distribute-ssh-key has no effect on a job that runs on one "
        "host.\n",
    )
