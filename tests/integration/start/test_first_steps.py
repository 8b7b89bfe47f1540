"""What a newcomer does first, on every MPI."""

import json
import os
import subprocess
import sys

import pytest
from conftest import POPRUN, Poprun

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
        "poprun: warning: --distribute-ssh-key has no effect on a job on a "
        "single host.\n",
    )


def test_options_after_the_program_are_the_programs_and_warned_of(
    poprun: Poprun,
) -> None:
    words = ("--mpirun", "local", "echo", "hi", "--num-instances", "4")

    ran, quiet = poprun(*words), poprun("-q", *words)

    assert (ran.code, ran.stdout) == (0, "hi --num-instances 4\n")
    assert ran.stderr == (
        "poprun: warning: --num-instances comes after the program, so it is passed to "
        "the program. Write poprun's options before the program.\n"
    )
    assert (quiet.stdout, quiet.stderr) == (ran.stdout, "")


def test_ten_instances_for_each_cpu_are_warned_of(poprun: Poprun) -> None:
    cpu = min(os.sched_getaffinity(0))
    words = ("--mpirun", "local", "-n", "10", "true")

    ran, quiet = (
        subprocess.run(
            ["taskset", "--cpu-list", str(cpu), POPRUN, *options, *words],
            cwd=poprun.directory,
            env=poprun.environ,
            capture_output=True,
            text=True,
        )
        for options in ([], ["-q"])
    )

    assert ran.stderr == (
        "poprun: warning: 10 instances share the 1 usable CPU of localhost. -n auto "
        "starts one for each CPU.\n"
    )
    assert quiet.stderr == ""


def run_below(mpirun: str, size: int, *words: str) -> subprocess.CompletedProcess[str]:
    as_root = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    return subprocess.run(
        [mpirun, "-n", str(size), *words],
        env={
            **os.environ,
            **dict.fromkeys(as_root, "1"),
            **{name.replace("OMPI", "PRTE"): "1" for name in as_root},
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
        },
        capture_output=True,
        text=True,
    )


def test_several_copies_of_poprun_below_mpirun_start_nothing(every_mpirun: str) -> None:
    job = (
        *(sys.executable, "-m", "poprun", "-n", "2", "--mpirun", "local"),
        *("--tag-format=none", "echo", "started"),
    )

    several = run_below(every_mpirun, 2, *job)
    alone = run_below(every_mpirun, 1, *job)

    assert several.returncode != 0
    assert "poprun: error: mpirun has started 2 copies of poprun" in several.stderr
    assert "started" not in several.stdout
    assert (alone.returncode, alone.stdout) == (0, "started\n" * 2)


def test_a_script_of_one_rank_may_start_poprun(every_mpirun: str) -> None:
    script = (
        'test "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 1 || '
        f"{sys.executable} -m poprun -n 2 --mpirun local --tag-format=none "
        "echo started; exit"
    )

    ran = run_below(every_mpirun, 2, "sh", "-c", script)

    assert (ran.returncode, ran.stdout) == (0, "started\n" * 2)
