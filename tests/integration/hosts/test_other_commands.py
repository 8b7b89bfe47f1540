"""Jobs whose hosts are reached without ssh, and in the pods of an MPIJob."""

import json
from collections.abc import Callable

import pytest
from beds.bed import Bed
from beds.pods import pods
from conftest import mpirun_of

pytestmark = pytest.mark.mpi

WHERE = "import os, socket; print(os.environ['RANK'], socket.gethostname())"
LOCAL = ("poprun", "--mpirun", "local", "--offline-mode=yes")


# A command gets words. Some run them, and others pass them to a shell.
@pytest.mark.parametrize("program", ['"$@"', 'sh -c "$*"'])
def test_instances_run_in_pods_that_a_command_enters(bed: Bed, program: str) -> None:
    folder = bed.front.path("/tmp/job")
    with pods(bed.front, "pod-1", "pod-2", program=program) as command:
        folder.mkdir()
        (folder / "train.py").write_text(f"{WHERE}\nprint(open('data').read())")
        (folder / "data").write_text("same")
        ran = bed.front.run(
            *(*LOCAL, "--ssh", command, "--host", "h0,pod-1,pod-2", "-n", "3"),
            *("--sync", ".", "python3", "train.py"),
            cwd="/tmp/job",
            env={"SSH_CONNECTION": "10.9.9.9 1 10.9.9.8 22"},
        )
        failed = bed.front.run(
            *(*LOCAL, "--ssh", command, "--host", "pod-1,pod-2", "-n", "2"),
            *("sh", "-c", 'if [ "$RANK" = 1 ]; then exit 7; fi; sleep 600'),
        )
        bed.front.output("rm", "-r", "/tmp/job")

    assert (ran.returncode, ran.stderr) == (0, "")
    assert sorted(ran.stdout.splitlines()) == [
        *("0 h0", "1 pod-1", "2 pod-2", "same", "same", "same")
    ]
    assert failed.returncode == 7
    assert failed.stderr.endswith("Instance 1 on pod-2 exited with code 7.\n")


def test_a_pod_that_a_command_does_not_reach_is_named(bed: Bed) -> None:
    with pods(bed.front, "pod-1", program='"$@"') as command:
        ran = bed.front.run(
            *(*LOCAL, "--ssh", command, "--host", "pod-1,pod-2", "-n", "2", "true")
        )
        key = bed.front.run(
            *(*LOCAL, "--ssh", command, "--host", "pod-1", "-n", "1"),
            *("--distribute-ssh-key=yes", "true"),
        )

    assert ran.returncode == 125
    assert ran.stderr == (
        "poprun: error: The host pod-2 cannot be used: exec ended with exit code 1. "
        "exec says: 'cat: /run/pods/pod-2: No such file or directory'. See: "
        "/run/pods/exec pod-2 true\n"
    )
    assert key.returncode == 2
    assert key.stderr == (
        "poprun: error: --distribute-ssh-key works with ssh only, not with --ssh "
        "'/run/pods/exec'. Leave it out.\n"
    )


@pytest.mark.parametrize("mpi", ["openmpi5", "local"])
def test_the_launcher_of_an_mpijob_uses_its_hostfile(
    make_bed: Callable[..., Bed], mpi: str
) -> None:
    bed = make_bed(names=["launcher", "train-worker-0", "train-worker-1"])
    # As the MPI Operator writes it, and the variables that it sets.
    hostfile = "train-worker-0.bed slots=2\ntrain-worker-1.bed slots=2\n"
    bed.front.path("/etc/mpi").mkdir()
    bed.front.path("/etc/mpi/hostfile").write_text(hostfile)
    environ = {
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        "K_MPI_JOB_ROLE": "launcher",
    }
    words = ("--hostfile", "/etc/mpi/hostfile", "-n", "auto", "--result", "/root/r")
    path = "local" if mpi == "local" else mpirun_of(mpi)

    ran = bed.front.run(
        *("poprun", "--mpirun", path, "--offline-mode=yes", *words),
        *("python3", "-c", WHERE),
        env=environ,
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    assert sorted(ran.stdout.splitlines()) == [
        *("0 train-worker-0", "1 train-worker-0"),
        *("2 train-worker-1", "3 train-worker-1"),
    ]
    result = json.loads(bed.front.path("/root/r").read_text())
    hosts = [one["host"] for one in result["attempts"][0]["instances"]]
    assert hosts == ["train-worker-0.bed"] * 2 + ["train-worker-1.bed"] * 2
    bed.assert_nothing_is_left()
