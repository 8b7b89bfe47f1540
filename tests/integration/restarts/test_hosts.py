"""--max-restarts over hosts: a host that was lost, comes back, or stays away."""

import signal
import subprocess
import time
from collections.abc import Callable

import pytest
from beds.bed import Bed
from conftest import ROOT, mpirun_of
from integration.restarts.test_checkpoints import STOPS

pytestmark = pytest.mark.mpi

# Its waits are short.
POPRUN = str(ROOT / "tests" / "often_searching_poprun.py")
# The test of checkpoints has hydra.
MPIS = ["openmpi5", "local"]
AGENT = "host/agent_entry.py"
# Runs on in the first attempt, and ends at once in each other.
PROGRAM = (
    "echo $POPDIST_RESTART_COUNT $RANK $(uname -n); touch /tmp/runs-$RANK; "
    "test $POPDIST_RESTART_COUNT != 0 || sleep 600"
)


def start(bed: Bed, mpi: str, restarts: int, *program: str) -> "subprocess.Popen[str]":
    path = "local" if mpi == "local" else mpirun_of(mpi)
    job: subprocess.Popen[str] = bed.front.start(
        *("python3", POPRUN, "--mpirun", path, "--offline-mode=yes", "--grace", "1"),
        *("--host", "h0,h1", "-n", "4", "--max-restarts", str(restarts), *program),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return job


def wait_for_file(bed: Bed, host: str, path: str, job: "subprocess.Popen[str]") -> None:
    limit = time.monotonic() + 200
    while not bed[host].path(path).exists():
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < limit
        time.sleep(0.02)


def kill(bed: Bed, host: str, pattern: str) -> None:
    pids = bed[host].run("pgrep", "-f", pattern).stdout.split()
    assert pids
    bed[host].run("kill", "-9", *pids)


def clean(bed: Bed) -> None:
    for host in bed.hosts:
        host.run("sh", "-c", "rm -f /tmp/runs-*")


@pytest.mark.parametrize("mpi", MPIS)
def test_a_host_that_was_lost_and_answers_again_takes_part(bed: Bed, mpi: str) -> None:
    job = start(bed, mpi, 1, "sh", "-c", PROGRAM)
    for rank in range(4):
        wait_for_file(bed, f"h{rank // 2}", f"/tmp/runs-{rank}", job)
    kill(bed, "h1", AGENT)
    out, err = job.communicate(timeout=200)
    clean(bed)

    assert job.returncode == 0, err
    again = sorted(line for line in out.splitlines() if line.startswith("1 "))
    assert again == ["1 0 h0", "1 1 h0", "1 2 h1", "1 3 h1"]
    assert "attempt 0: The host h1 was lost" in err
    assert err.endswith("    attempt 1: succeeded\n")


def test_a_host_that_stays_away_is_named_and_the_job_ends(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(hosts=2)
    job = start(bed, "local", 2, "sh", "-c", PROGRAM)
    for rank in range(4):
        wait_for_file(bed, f"h{rank // 2}", f"/tmp/runs-{rank}", job)
    bed["h1"].stop_sshd()
    kill(bed, "h1", AGENT)
    _, err = job.communicate(timeout=200)

    assert job.returncode == 125, err
    lines = err.splitlines()
    assert lines[-3].startswith("    attempt 0: The host h1 was lost")
    assert lines[-2].startswith("    attempt 1: The host h1 cannot be used")
    assert lines[-1].startswith("    attempt 2: not started: The host h1 cannot be")


def test_a_signal_while_poprun_waits_for_a_lost_host_leaves_nothing(bed: Bed) -> None:
    # The second attempt, too, goes on until a signal that comes late.
    job = start(bed, "local", 1, "sh", "-c", "touch /tmp/runs-$RANK; sleep 600")
    for rank in range(4):
        wait_for_file(bed, f"h{rank // 2}", f"/tmp/runs-{rank}", job)
    kill(bed, "h1", AGENT)
    assert job.stderr is not None
    seen = ""
    while "will be started again" not in seen:
        line = job.stderr.readline()
        assert line, seen
        seen += line
    job.send_signal(signal.SIGINT)
    job.communicate(timeout=200)
    clean(bed)

    assert job.returncode == 130


def test_a_training_goes_on_from_its_checkpoint_after_the_loss_of_a_host(
    bed: Bed,
) -> None:
    # A directory that the hosts share.
    home = bed.front.output("sh", "-c", "echo $HOME").strip()
    checkpoint = f"{home}/checkpoint.npz"
    job = start(bed, "hydra", 1, "python3", "-c", STOPS, checkpoint, "40")
    wait_for_file(bed, "h0", checkpoint, job)
    kill(bed, "h1", AGENT)
    out, err = job.communicate(timeout=200)
    bed.front.run("rm", "-f", checkpoint)

    assert job.returncode == 0, err
    begins = [line for line in out.splitlines() if "begins" in line]
    assert begins == ["attempt 0 begins at step 0", "attempt 1 begins at step 10"]
    assert "step  40" in out
