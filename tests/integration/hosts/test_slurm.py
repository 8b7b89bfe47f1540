"""Jobs inside a real Slurm: its nodes are the hosts, and srun reaches them."""

from collections.abc import Callable

import pytest
from beds.bed import Bed
from conftest import mpirun_of

pytestmark = pytest.mark.mpi

MPIS = ["openmpi5", "openmpi4", "hydra", "local"]
WHERE = ("sh", "-c", "echo $RANK $(hostname)")
BOTH = ["0 h0", "1 h0", "2 h1", "3 h1"]


def poprun(mpi: str, *words: str) -> list[str]:
    path = "local" if mpi == "local" else mpirun_of(mpi)
    return ["poprun", "--mpirun", path, "--offline-mode=yes", *words]


def sorted_lines(text: str) -> list[str]:
    return sorted(text.splitlines())


@pytest.mark.parametrize("user", ["root", "ipuser"])
@pytest.mark.parametrize("mpi", MPIS)
def test_a_job_runs_on_all_nodes_of_an_allocation(
    slurm_bed: Bed, mpi: str, user: str
) -> None:
    words = ["salloc", "--quiet", "--nodes=2", *poprun(mpi, "-n", "4", *WHERE)]

    ran = slurm_bed.front.run(*words, user=user)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert sorted_lines(ran.stdout) == BOTH


@pytest.mark.parametrize("mpi", ["openmpi5", "openmpi4", "hydra"])
def test_programs_reach_each_other_by_mpi_where_no_sshd_runs(
    make_bed: Callable[..., Bed], mpi: str
) -> None:
    program = "from mpi4py import MPI; w = MPI.COMM_WORLD; print(w.allreduce(w.rank))"
    bed = make_bed(hosts=2, slurm_cpus=2)
    for host in bed.hosts:
        host.stop_sshd()

    ran = bed.front.run(
        *("salloc", "--quiet", "--nodes=2"),
        *poprun(mpi, "-n", "4", "python3", "-c", program),
    )

    assert (ran.returncode, ran.stdout) == (0, "6\n" * 4)
    bed.assert_nothing_is_left()


@pytest.mark.parametrize("mpi", MPIS)
def test_a_step_of_one_task_runs_a_job_over_the_allocation(
    slurm_bed: Bed, mpi: str
) -> None:
    ran = slurm_bed.front.run(
        *("salloc", "--quiet", "--nodes=2", "srun", "--quiet", "--ntasks=1"),
        *poprun(mpi, "-n", "4", *WHERE),
    )

    assert (ran.returncode, sorted_lines(ran.stdout)) == (0, BOTH)


def test_a_step_is_a_job_on_its_node_where_srun_makes_the_allocation(
    slurm_bed: Bed,
) -> None:
    ran = slurm_bed.front.run(
        *("srun", "--ntasks=1", "--nodelist=h1"), *poprun("local", "-n", "2", *WHERE)
    )

    assert (ran.returncode, sorted_lines(ran.stdout)) == (0, ["0 h1", "1 h1"])


def test_all_tasks_of_a_step_refuse_to_start_the_job(slurm_bed: Bed) -> None:
    ran = slurm_bed.front.run(
        "srun", "--nodes=2", "--ntasks=4", *poprun("local", "-n", "4", *WHERE)
    )

    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.count("srun has started 4 copies of poprun") == 4


def test_the_front_of_an_allocation_need_not_be_in_it(slurm_bed: Bed) -> None:
    ran = slurm_bed.front.run(
        *("salloc", "--quiet", "--nodelist=h1"), *poprun("local", "-n", "2", *WHERE)
    )

    assert (ran.returncode, sorted_lines(ran.stdout)) == (0, ["0 h1", "1 h1"])


def test_hosts_outside_the_allocation_are_reached_by_ssh(slurm_bed: Bed) -> None:
    ran = slurm_bed.front.run(
        *("salloc", "--quiet", "--nodelist=h0"),
        *poprun("local", "--host", "h0,h1", "-n", "4", *WHERE),
    )

    assert (ran.returncode, sorted_lines(ran.stdout)) == (0, BOTH)


def test_the_first_failure_on_any_node_is_the_cause(slurm_bed: Bed) -> None:
    program = 'if [ "$RANK" = 3 ]; then exit 7; fi; sleep 60'

    ran = slurm_bed.front.run(
        *("salloc", "--quiet", "--nodes=2"),
        *poprun("local", "-n", "4", "sh", "-c", program),
    )

    assert ran.returncode == 7
    assert ran.stderr == "poprun: error: Instance 3 on h1 exited with code 7.\n"


def test_instances_see_the_job_and_no_step_of_an_agent(slurm_bed: Bed) -> None:
    show = "env | grep ^SLURM | sort | sed s/^/$RANK:/"

    ran = slurm_bed.front.run(
        *("salloc", "--quiet", "--nodes=2"),
        *poprun("local", "-n", "2", "sh", "-c", show),
    )

    lines = ran.stdout.splitlines()
    first = [line[2:] for line in lines if line.startswith("0:")]
    second = [line[2:] for line in lines if line.startswith("1:")]
    assert "SLURM_JOB_NODELIST=h[0-1]" in first
    assert second == sorted(["SLURMD_NODENAME=h1", *first])


def test_what_instances_write_is_passed_on_to_the_bit(slurm_bed: Bed) -> None:
    program = "import os; [os.write(1, bytes(range(256)) * 256) for _ in range(40)]"

    job = slurm_bed.front.start(
        *("salloc", "--quiet", "--nodelist=h1"),
        *poprun("local", "-n", "1", "--mpi-global-args=--output-filename /tmp/out"),
        *("python3", "-c", program),
    )

    assert job.wait(timeout=50) == 0
    [file] = [
        path
        for path in slurm_bed.front.path("/tmp/out").rglob("*stdout*")
        if path.is_file()
    ]
    assert file.read_bytes() == bytes(range(256)) * 256 * 40
    slurm_bed.front.output("rm", "-r", "/tmp/out")


def test_each_instance_reads_its_copy_of_the_standard_input(slurm_bed: Bed) -> None:
    text = "".join(f"{number}\n" for number in range(100_000))

    ran = slurm_bed.front.run(
        *("salloc", "--quiet", "--nodes=2"),
        *poprun("local", "-n", "2", "--stdin", "all", "wc", "-c"),
        stdin=text,
    )

    assert (ran.returncode, ran.stdout) == (0, f"{len(text)}\n" * 2)


def test_a_job_of_slurm_that_has_ended_is_named(slurm_bed: Bed) -> None:
    stale = {"SLURM_JOB_ID": "99999", "SLURM_JOB_NODELIST": "h[0-1]"}

    ran = slurm_bed.front.run(*poprun("local", "-n", "2", "true"), env=stale)

    assert (ran.returncode, ran.stdout) == (125, "")
    assert ran.stderr.startswith(
        "poprun: error: The host h1 cannot be used: srun cannot start a step on it. "
        "srun says: 'srun: error: Unable to confirm allocation for job 99999: Invalid "
        "job id specified"
    )
