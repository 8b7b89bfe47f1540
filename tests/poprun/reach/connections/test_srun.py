"""How srun starts an agent, and what is said where it cannot."""

import sys
from pathlib import Path

from poprun.host_specs import HostSpec
from poprun.plan.slurm import SlurmJob
from poprun.reach.connections.connector import CommandEnd
from poprun.reach.connections.srun import Srun, find_srun

NODES = (HostSpec(name="n1", slots=2), HostSpec(name="n2"))
JOB = SlurmJob(job_id="12", nodes=NODES)
SRUN = Srun(path="/usr/bin/srun", allocation=JOB)


def explain(text: str) -> str:
    failure = CommandEnd(exit_code=1, errors=text)
    return SRUN.explain(HostSpec(name="n2"), failure, "/agent.py")


def test_nodes_of_the_job_are_reached_by_srun_and_other_hosts_are_not() -> None:
    assert SRUN.reaches(HostSpec(name="n1"))
    assert not SRUN.reaches(HostSpec(name="n3"))
    assert not SRUN.reaches(HostSpec(name="n1", user="alice"))


def test_the_agent_is_one_task_that_takes_nothing_from_others() -> None:
    argv = SRUN.argv(HostSpec(name="n2"), ["python", "agent"])

    assert argv == [
        *("/usr/bin/srun", "--jobid=12", "--overlap", "--nodes=1"),
        *("--ntasks=1", "--mem=0", "--cpu-bind=none", "--unbuffered", "--export=ALL"),
        *("--chdir=/", "--mpi=none", "--job-name=poprun-agent", "--nodelist", "n2"),
        *("python", "agent"),
    ]


def test_srun_sees_no_defaults_of_the_step_that_poprun_runs_in() -> None:
    environ = {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_LABELIO": "1",
        "SLURM_MEM_PER_NODE": "100",
        "SRUN_DEBUG": "3",
        "SLURMD_NODENAME": "n1",
    }

    assert SRUN.environment(environ) == {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
    }


def test_srun_is_looked_for_in_a_job_only(tmp_path: Path) -> None:
    environ = {"PATH": f"/nonexistent:{tmp_path}"}
    assert find_srun(JOB, environ) is None
    path = tmp_path / "srun"
    path.touch(mode=0o755)

    assert find_srun(JOB, environ) == Srun(path=str(path), allocation=JOB)
    assert find_srun(None, environ) is None


def test_the_words_of_srun_say_why_a_node_cannot_be_used() -> None:
    text = (
        "srun: error: Unable to confirm allocation for job 12: Invalid job id "
        "specified.\n"
    )

    assert explain(text) == (
        "The host n2 cannot be used: srun cannot start a step on it. srun "
        "says: 'srun: error: Unable to confirm allocation for job 12: "
        "Invalid job id specified'. Try: srun --jobid=12 --overlap -n1 -w "
        "n2 true"
    )


def test_a_node_without_this_python_is_told_from_other_failures() -> None:
    text = f"slurmstepd: error: execve(): {sys.executable}: No such file or directory\n"

    assert explain(text) == (
        f"The host n2 cannot be used: it has no {sys.executable}. srun "
        f"says: 'slurmstepd: error: execve(): {sys.executable}: No such "
        "file or directory'. Install the same Python and poprun at the "
        "same paths there."
    )
