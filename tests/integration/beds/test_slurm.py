"""A bed's Slurm is a real one: its jobs run on all nodes, and MPIs start through it."""

from collections.abc import Callable

import pytest
from beds import slurm
from beds.bed import Bed
from conftest import mpirun_of, wait_for
from integration.beds.test_mpi import sorted_four_lines

BOTH_NODES = ("--nodes=2", "--ntasks=4", "--ntasks-per-node=2")


def sorted_lines(text: str) -> list[str]:
    return sorted(text.splitlines())


@pytest.mark.parametrize("user", ["root", "ipuser"])
@pytest.mark.parametrize("words", [("srun",), ("salloc", "--quiet", "srun")])
def test_tasks_run_on_both_nodes(
    slurm_bed: Bed, words: tuple[str, ...], user: str
) -> None:
    command, *rest = words
    out = slurm_bed.front.output(command, *BOTH_NODES, *rest, "hostname", user=user)

    assert sorted_lines(out) == ["h0", "h0", "h1", "h1"]


def test_a_batch_script_runs_on_both_nodes(slurm_bed: Bed) -> None:
    script = "#!/bin/sh\nhostname; echo $SLURM_JOB_NODELIST; srun hostname\n"
    words = ["sbatch", *BOTH_NODES, "--output=batch.out"]
    slurm_bed.front.output(*words, stdin=script)
    wait_for(lambda: not slurm.jobs(slurm_bed.front), "the end of the job")

    begin, nodes, *tasks = slurm_bed["h1"].output("cat", "batch.out").splitlines()
    assert (begin, nodes) == ("h0", "h[0-1]")
    assert sorted(tasks) == ["h0", "h0", "h1", "h1"]
    slurm_bed.front.output("rm", "batch.out")


def test_a_cancelled_job_ends_on_both_nodes(slurm_bed: Bed) -> None:
    srun = slurm_bed.front.start("srun", *BOTH_NODES, "--job-name=long", "sleep", "600")
    wait_for(
        lambda: str(slurm_bed["h1"].processes()).count("bin/sleep 600") == 2,
        "tasks on the other node",
    )
    slurm_bed.front.output("scancel", "--name=long")

    assert srun.wait(timeout=200) != 0
    slurm_bed.assert_nothing_is_left()


def test_a_step_of_an_allocation_overlaps_another(slurm_bed: Bed) -> None:
    steps = (
        "srun --ntasks=4 --ntasks-per-node=2 sleep 600 & "
        "srun --overlap --nodes=2 --ntasks=2 --ntasks-per-node=1 hostname; kill $!"
    )
    out = slurm_bed.front.output("salloc", "--quiet", *BOTH_NODES, "sh", "-c", steps)

    assert sorted_lines(out) == ["h0", "h1"]


def test_slurm_needs_no_sshd(make_bed: Callable[..., Bed]) -> None:
    bed = make_bed(hosts=3, slurm_cpus=1)
    for host in bed.hosts:
        host.stop_sshd()
    out = bed.front.output("salloc", "--quiet", "--nodes=3", "srun", "hostname")

    assert sorted_lines(out) == ["h0", "h1", "h2"]


SLURM_LAUNCHERS = {
    "openmpi5": ["--prtemca", "plm", "slurm"],
    "openmpi4": ["--mca", "plm", "slurm"],
    "hydra": ["-launcher", "slurm"],
}
SSH_LAUNCHERS = {
    "openmpi5": ["--prtemca", "plm", "ssh"],
    "openmpi4": ["--mca", "plm", "rsh"],
    "hydra": ["-launcher", "ssh"],
}


@pytest.mark.mpi
@pytest.mark.parametrize("launchers", [SLURM_LAUNCHERS, SSH_LAUNCHERS])
@pytest.mark.parametrize("mpi", SLURM_LAUNCHERS)
def test_mpirun_spans_an_allocation(
    slurm_bed: Bed, mpi: str, launchers: dict[str, list[str]]
) -> None:
    words = ["salloc", "--quiet", *BOTH_NODES, mpirun_of(mpi), *launchers[mpi]]
    lines = sorted_four_lines(slurm_bed, *words, "-n", "4", "hostname")

    assert lines == ["h0", "h0", "h1", "h1"]
