"""Jobs inside a real Slurm: its nodes are the hosts, and srun reaches them."""

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator

import pytest
from beds import slurm
from beds.bed import Bed
from conftest import ROOT, mpirun_of, wait_for

from poprun.reach.own_host.facts import own_facts

pytestmark = pytest.mark.mpi

MPIS = ["openmpi5", "openmpi4", "hydra", "local"]
# For signals that reach poprun alone, or that it reads alone: mpirun has no part in it.
MPI_OR_NONE = ["openmpi5", "local"]
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


# As docs/collectives.md says.
LINKS = (
    "export POPDIST_LINKS=tcp://$(scontrol show hostnames | head -n 1):29600/"
    "$(python3 -c 'import secrets; print(secrets.token_hex())'); "
)
STORE = (
    "export MASTER_ADDR=$(scontrol show hostnames | head -n 1) MASTER_PORT=29601 "
    "WORLD_SIZE=4; "
)
SUM = """
import socket, sys
import numpy as np, popdist
group = popdist.instance_group()
total = group.all_reduce(np.full(3, group.rank + 1.0))[0]
sys.stdout.write(f"{group.rank} {socket.gethostname()} {total}\\n")
"""
TORCH_SUM = """
import os, socket, sys
import popdist.torch, torch, torch.distributed as dist
rank = int(os.environ["SLURM_PROCID"])
dist.init_process_group("popdist", rank=rank)
dist.all_reduce(total := torch.full((3,), rank + 1.0))
sys.stdout.write(f"{rank} {socket.gethostname()} {total[0]}\\n")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("user", ["root", "ipuser"])
@pytest.mark.parametrize(
    ("begin", "program"), [(LINKS, SUM), (STORE, TORCH_SUM)], ids=["numpy", "torch"]
)
def test_programs_of_srun_without_pmi_reach_each_other_by_tcp(
    slurm_bed: Bed, begin: str, program: str, user: str
) -> None:
    srun = ("srun", "--mpi=none", "--ntasks=4", "python3", "-c", program)

    ran = slurm_bed.front.run(
        *("salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2"),
        *("sh", "-c", begin + shlex.join(srun)),
        user=user,
    )

    lines = [f"{rank} h{rank // 2} 10.0" for rank in range(4)]
    assert (ran.returncode, sorted_lines(ran.stdout)) == (0, lines), ran.stderr


def test_a_first_node_whose_own_name_is_loopback_is_refused(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(hosts=2, slurm_cpus=2)
    # As in many installations.
    bed.front.run("sed", "-i", "1i 127.0.1.1 h0", "/etc/hosts")
    srun = ("srun", "--mpi=none", "--ntasks=2", "--wait=10")

    ran = bed.front.run(
        *("salloc", "--quiet", "--nodes=2"),
        *("sh", "-c", LINKS + shlex.join((*srun, "python3", "-c", SUM))),
    )

    assert ran.returncode != 0
    assert (
        "Instance 0 would listen at 127.0.1.1, because h0 has this address on its own "
        "host, where other hosts cannot reach it. Give POPDIST_LINKS an address of "
        "that host in place of its name; hostname -I lists them."
    ) in ran.stderr


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
    program = 'if [ "$RANK" = 3 ]; then exit 7; fi; sleep 600'

    ran = slurm_bed.front.run(
        *("salloc", "--quiet", "--nodes=2"),
        *poprun("local", "-n", "4", "sh", "-c", program),
    )

    assert ran.returncode == 7
    cause = "poprun: error: Instance 3 on h1 exited with code 7."
    assert ran.stderr.splitlines()[-1] == cause


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


@pytest.mark.parametrize("form", ["slurm_{}", "p{}"])
def test_the_partition_of_the_slurm_job_is_that_of_the_instances(
    slurm_bed: Bed, form: str
) -> None:
    own = form.format("$SLURM_JOB_ID")
    program = (
        "import os, popdist; print(os.environ['RANK'], "
        "os.environ['IPUOF_VIPU_API_PARTITION_ID'], popdist.getDeviceId() is not None)"
    )
    size = ("--num-instances", "4", "--num-replicas", "4")
    job = ("poprun", "--mpirun", "local", *size, "python3", "-c", program)
    script = (
        "for name in other-1 other-2 $own; do vipu create partition $name --size 4 "
        "--num-gcds 4 --total-num-replicas 4; done; "
        f"{shlex.join(job)}; vipu list partitions"
    ).replace("$own", own)

    ran = slurm_bed.front.run("salloc", "--quiet", "--nodes=2", "sh", "-c", script)

    slurm_bed.front.output("rm", "-rf", "/root/.local/state/poprun")
    lines = [line.split() for line in ran.stdout.splitlines()]
    instances = sorted(words for words in lines if len(words) == 3)
    [name] = {words[1] for words in instances}
    assert re.fullmatch(form.format("[0-9]+"), name), ran
    assert instances == [[str(rank), name, "True"] for rank in range(4)]
    # It outlives the job, which has not made it.
    assert f" {name} " in ran.stdout.rpartition(" Partition ")[2]


def test_what_instances_write_is_passed_on_to_the_bit(slurm_bed: Bed) -> None:
    program = "import os; [os.write(1, bytes(range(256)) * 256) for _ in range(40)]"

    job = slurm_bed.front.start(
        *("salloc", "--quiet", "--nodelist=h1"),
        *poprun("local", "-n", "1", "--mpi-global-args=--output-filename /tmp/out"),
        *("python3", "-c", program),
    )

    assert job.wait(timeout=200) == 0
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


# Says when it is asked to end, and ends a second later.
SLOW_TO_END = (
    # Slurm's signal may end one of the sleeps, too.
    "trap 'for i in $(seq 10); do sleep 0.1; done; echo ended; exit 0' TERM; "
    "touch /tmp/runs-$RANK; while :; do sleep 0.1; done"
)
# Ignores SIGTERM, and leaves its session and its environment.
STUBBORN = (
    "trap '' TERM; setsid env -i /bin/sleep 601 & touch /tmp/runs-$RANK; while :; do "
    "sleep 1; done"
)


class BatchJob:
    """A job of poprun in a batch script of Slurm, which runs on both nodes.

    Args:
        program: What its four instances run, in words of a shell.
    """

    def __init__(
        self, bed: Bed, program: str, mpi: str = "local", user: str = "root"
    ) -> None:
        self.bed = bed
        self.user = user
        # Enough for what ends by itself, also on a busy machine.
        grace = "2" if program == STUBBORN else "90"
        words = poprun(mpi, "--grace", grace, "-n", "4", "sh", "-c", program)
        script = f"#!/bin/sh\nexec {shlex.join(words)}\n"
        sbatch = ("sbatch", "--parsable", "--nodes=2", "--output=batch.out")
        self.id = bed.front.output(*sbatch, stdin=script, user=user).strip()
        for rank in range(4):
            host = bed.hosts[rank // 2]
            path = f"/tmp/runs-{rank}"
            wait_for(host.path(path).exists, f"instance {rank} on {host.name}")
            host.output("rm", path)

    def end(self) -> str:
        """Wait until it has left all nodes, and return what it has written."""
        wait_for(
            lambda: not any(host.processes() for host in self.bed.hosts),
            "the end of all processes",
        )
        text = self.bed.front.output("cat", "batch.out", user=self.user)
        self.bed.front.output("rm", "batch.out", user=self.user)
        return text


@pytest.mark.parametrize("mpi", MPIS)
def test_a_cancelled_job_ends_with_its_grace(slurm_bed: Bed, mpi: str) -> None:
    job = BatchJob(slurm_bed, SLOW_TO_END, mpi)

    slurm_bed.front.output("scancel", job.id)

    text = job.end()
    assert text.count("ended\n") == 4
    assert text.endswith("poprun: error: Stopped by SIGTERM.\n")


@pytest.fixture
def hidden_processes(slurm_bed: Bed) -> Iterator[None]:
    """Hide the processes of others, Slurm's too, from users on all hosts."""
    for host in slurm_bed.hosts:
        host.output("mount", "-o", "remount,hidepid=2", "/proc")
    yield
    for host in slurm_bed.hosts:
        host.output("mount", "-o", "remount,hidepid=0", "/proc")


@pytest.mark.usefixtures("hidden_processes")
@pytest.mark.parametrize("mpi", MPI_OR_NONE)
def test_a_cancelled_job_of_a_user_who_cannot_see_slurm_ends_with_its_grace(
    slurm_bed: Bed, mpi: str
) -> None:
    job = BatchJob(slurm_bed, SLOW_TO_END, mpi, user="ipuser")

    slurm_bed.front.output("scancel", job.id)

    text = job.end()
    assert text.count("ended\n") == 4
    assert text.endswith("poprun: error: Stopped by SIGTERM.\n")


@pytest.mark.parametrize("mpi", MPIS)
def test_a_cancelled_job_leaves_nothing_on_any_node(slurm_bed: Bed, mpi: str) -> None:
    job = BatchJob(slurm_bed, STUBBORN, mpi)

    slurm_bed.front.output("scancel", job.id)

    assert job.end().endswith("poprun: error: Stopped by SIGTERM.\n")


@pytest.mark.parametrize("mpi", MPI_OR_NONE)
def test_a_signal_to_the_batch_script_ends_a_job_with_its_grace(
    slurm_bed: Bed, mpi: str
) -> None:
    job = BatchJob(slurm_bed, SLOW_TO_END, mpi)

    slurm_bed.front.output("scancel", "--batch", "--signal=TERM", job.id)

    text = job.end()
    assert text.count("ended\n") == 4
    assert text.endswith("poprun: error: Stopped by SIGTERM.\n")


def test_nothing_stays_on_other_nodes_when_slurm_kills_the_batch_script(
    slurm_bed: Bed,
) -> None:
    job = BatchJob(slurm_bed, STUBBORN)

    slurm_bed.front.output("scancel", "--batch", "--signal=KILL", job.id)

    job.end()


@pytest.mark.parametrize("victims", ["bin/poprun ", "bin/poprun |entry.py guard"])
def test_nothing_stays_on_any_node_when_poprun_is_killed(
    slurm_bed: Bed, victims: str
) -> None:
    job = BatchJob(slurm_bed, STUBBORN)

    slurm_bed.front.output("pkill", "-KILL", "-f", victims)

    job.end()


def test_a_node_whose_srun_is_killed_is_lost_and_left_clean(slurm_bed: Bed) -> None:
    job = BatchJob(slurm_bed, STUBBORN)

    slurm_bed.front.output("pkill", "-KILL", "srun$")

    assert "poprun: error: The host h1 was lost: " in job.end()


@pytest.mark.parametrize("mpi", MPI_OR_NONE)
def test_an_elastic_job_grows_on_nodes_that_slurm_adds(
    slurm_bed: Bed, mpi: str
) -> None:
    program = (
        "touch /tmp/runs-$POPDIST_RESTART_COUNT-$RANK; "
        "test $POPDIST_RESTART_COUNT != 0 || exec sleep 600; echo $RANK $(hostname)"
    )
    often_searching = str(ROOT / "tests" / "often_searching_poprun.py")
    words = poprun(mpi, "-n", "4", "--min-instances", "2", "sh", "-c", program)
    job = slurm_bed.front.start(
        *("salloc", "--quiet", "--nodelist=h0", "--ntasks-per-node=2"),
        *("python3", often_searching, "--max-restarts", "1", *words[1:]),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(slurm_bed.front.path("/tmp/runs-0-1").exists, "the first attempt")
    [number, _] = slurm.jobs(slurm_bed.front)[0].split()
    slurm.add_nodes(slurm_bed.front, number, "h1")

    out, err = job.communicate(timeout=200)
    for host in slurm_bed.hosts:
        host.output("sh", "-c", "rm -f /tmp/runs-*")
    assert (job.returncode, sorted_lines(out)) == (0, BOTH), err
    assert "poprun: the host h1 can be used: stopping the instances" in err


def test_a_node_that_is_cut_off_is_lost_and_ends_its_part(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(hosts=2, slurm_cpus=2, shared_home=True)
    job = BatchJob(bed, STUBBORN)

    bed["h1"].link.cut()

    wait_for(
        lambda: (
            "The host h1 was lost: it does not answer"
            in bed.front.output("cat", "batch.out")
        ),
        "the loss of the node",
    )
    wait_for(lambda: "entry.py" not in str(bed["h1"].processes()), "the agent")
    # A process that one of them has started removes the files.
    wait_for(lambda: not bed["h1"].files(), "the removal of the job's files")
    assert job.id


def test_the_example_trains_on_two_nodes(slurm_bed: Bed) -> None:
    script = str(ROOT / "examples" / "slurm" / "train.sbatch")
    slurm_bed.front.output(
        "sbatch", "--parsable", "--output=/root/train.out", script, cwd=str(ROOT)
    )
    wait_for(lambda: not slurm.jobs(slurm_bed.front), "the end of the job")

    text = slurm_bed.front.output("cat", "/root/train.out")
    slurm_bed.front.output("rm", "/root/train.out")
    assert "error" not in text
    assert text


@pytest.mark.parametrize(
    ("asked", "lines"),
    [
        (("--ntasks=4", "--ntasks-per-node=2"), BOTH),
        ((), ["0 h0", "1 h1"]),
    ],
)
def test_without_a_number_a_job_has_the_tasks_that_srun_would_start(
    slurm_bed: Bed, asked: tuple[str, ...], lines: list[str]
) -> None:
    allocation = ("salloc", "--quiet", "--nodes=2", *asked)
    tasks = slurm_bed.front.output(*allocation, "srun", "hostname").split()

    ran = slurm_bed.front.run(*allocation, *poprun("openmpi5", *WHERE))

    assert (ran.returncode, sorted_lines(ran.stdout)) == (0, lines)
    assert sorted(tasks) == [line.split()[1] for line in lines]


def test_auto_is_an_instance_for_each_cpu_of_the_nodes(slurm_bed: Bed) -> None:
    cpus = own_facts().num_usable_cpus

    ran = slurm_bed.front.run(
        *("salloc", "--quiet", "--nodes=2"), *poprun("openmpi5", "-n", "auto", *WHERE)
    )

    hosts = [line.split()[1] for line in sorted_lines(ran.stdout)]
    assert (ran.returncode, sorted(hosts)) == (0, ["h0"] * cpus + ["h1"] * cpus)


def test_tasks_that_are_not_the_same_number_on_each_node_are_refused(
    slurm_bed: Bed,
) -> None:
    ran = slurm_bed.front.run(
        *("salloc", "--quiet", "--nodes=2", "--ntasks=3"), *poprun("local", *WHERE)
    )

    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == (
        "poprun: error: 3 instances cannot be shared equally among the 2 "
        "nodes that Slurm has given this job. Ask for 2 or 4 with "
        "--num-instances, or name fewer of the nodes with --host.\n"
    )
