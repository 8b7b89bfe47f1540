"""Elastic jobs over hosts: the hosts of the next attempt after a loss or a return."""

import json
import subprocess
import time
from collections.abc import Callable

import pytest
from beds.bed import Bed
from conftest import mpirun_of, wait_for

pytestmark = pytest.mark.mpi

# Runs on in the first attempt, and tells what it is in each other.
PROGRAM = (
    "touch /tmp/runs-$RANK; test $POPDIST_RESTART_COUNT != 0 || sleep 600; "
    "echo $RANK of $WORLD_SIZE, replicas $POPDIST_NUM_TOTAL_REPLICAS on $(uname -n)"
)


def start(bed: Bed, mpi: str, *words: str) -> "subprocess.Popen[str]":
    path = "local" if mpi == "local" else mpirun_of(mpi)
    job: subprocess.Popen[str] = bed.front.start(
        *("poprun", "--mpirun", path, "--offline-mode=yes", "--grace", "1"),
        *("--max-restarts", "2", *words, "sh", "-c", PROGRAM),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return job


def wait_until_they_run(bed: Bed, job: "subprocess.Popen[str]", *hosts: str) -> None:
    """Wait for the first attempt: each rank is on the host at its place."""
    limit = time.monotonic() + 200
    marks = [bed[host].path(f"/tmp/runs-{rank}") for rank, host in enumerate(hosts)]
    while not all(mark.exists() for mark in marks):
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < limit
        time.sleep(0.02)


def assert_no_process_is_left(bed: Bed) -> None:
    wait_for(lambda: not any(host.processes() for host in bed.hosts), "no process")


def lines_of_last_attempt(out: str) -> list[str]:
    return sorted(line for line in out.splitlines() if " of " in line)


@pytest.mark.parametrize(
    ("mpi", "loss"),
    [
        ("openmpi5", "kill"),
        ("hydra", "kill"),
        ("local", "kill"),
        ("local", "power_off"),
    ],
)
def test_a_job_goes_on_without_a_host_that_was_lost(
    make_bed: Callable[..., Bed], mpi: str, loss: str
) -> None:
    bed = make_bed(hosts=3)
    words = ("--host", "h0,h1,h2", "-n", "6", "--min-instances", "2")
    job = start(bed, mpi, *words, "--log-dir", "/tmp/logs")
    wait_until_they_run(bed, job, "h0", "h0", "h1", "h1", "h2", "h2")
    getattr(bed["h1"], loss)()
    out, err = job.communicate(timeout=200)

    assert job.returncode == 0, err
    assert lines_of_last_attempt(out) == [
        "0 of 4, replicas 4 on h0",
        "1 of 4, replicas 4 on h0",
        "2 of 4, replicas 4 on h2",
        "3 of 4, replicas 4 on h2",
    ]
    assert "the job has 4 instances of at most 6 now, on h0, h2." in err
    # Some of its instances may have told their ends before.
    assert "Lost the host h1" in err
    # All attempts have one folder.
    folders = bed.front.path("/tmp/logs").iterdir()
    [run] = [folder for folder in folders if not folder.is_symlink()]
    attempts = sorted(path.name for path in run.glob("attempt-*"))
    assert attempts == ["attempt-0", "attempt-1"]
    for host in (bed["h0"], bed["h2"]):
        assert host.run("pgrep", "-f", "sleep 600").stdout == ""


def test_hosts_that_the_script_prints_later_take_part_in_the_next_attempt(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(hosts=3)
    script = ("--host-discovery-script", "cat /tmp/hosts")
    bed.front.path("/tmp/hosts").write_text("h0:1\nh1:1\n")
    result = "/tmp/result.json"
    job = start(
        *(bed, "local", *script, "--num-instances", "4", "--num-replicas", "8"),
        *("--nnodes", "1:4", "--result", result),
    )
    wait_until_they_run(bed, job, "h0", "h1")
    bed.front.path("/tmp/hosts").write_text("h0:1\nh1:1\nh2:1\n")
    bed["h1"].run("pkill", "-KILL", "-f", "sleep 600")
    out, err = job.communicate(timeout=200)

    assert job.returncode == 0, err
    assert lines_of_last_attempt(out) == [
        "0 of 3, replicas 6 on h0",
        "1 of 3, replicas 6 on h1",
        "2 of 3, replicas 6 on h2",
    ]
    attempts = json.loads(bed.front.path(result).read_text())["attempts"]
    hosts = [[i["host"] for i in attempt["instances"]] for attempt in attempts]
    assert hosts == [["h0", "h1"], ["h0", "h1", "h2"]]


def test_a_job_grows_when_the_script_prints_another_host(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(hosts=3)
    script = ("--host-discovery-script", "cat /tmp/hosts")
    bed.front.path("/tmp/hosts").write_text("h0:1\nh1:1\n")
    files = ("--result", "/tmp/result.json", "--events", "/tmp/events.json")
    job = start(bed, "local", *script, "-n", "4", "--nnodes", "1:4", *files)
    wait_until_they_run(bed, job, "h0", "h1")
    bed.front.path("/tmp/hosts").write_text("h0:1\nh1:1\nh2:1\n")
    out, err = job.communicate(timeout=200)

    assert job.returncode == 0, err
    assert lines_of_last_attempt(out) == [
        "0 of 3, replicas 3 on h0",
        "1 of 3, replicas 3 on h1",
        "2 of 3, replicas 3 on h2",
    ]
    assert (
        "poprun: the host h2 can be used: stopping the instances, to go on with 3.\n"
        "poprun: the job has 3 instances of at most 4 now, on h0, h1, h2.\n"
        "poprun: the attempts of the job:\n"
        "    attempt 0: The job grows from 2 to 3 instances, because the host h2 can "
        "be used.\n"
        "    attempt 1: succeeded\n"
    ) in err
    attempts = json.loads(bed.front.path("/tmp/result.json").read_text())["attempts"]
    assert [attempt["outcome"] for attempt in attempts] == ["grew", "succeeded"]
    events = bed.front.path("/tmp/events.json").read_text().splitlines()
    [growth] = [e for e in map(json.loads, events) if e["event"] == "hosts_available"]
    assert (growth["new_hosts"], growth["num_instances"]) == (["h2"], 3)
    assert_no_process_is_left(bed)


def test_a_job_that_may_not_shrink_further_ends_with_the_cause(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(hosts=2)
    job = start(bed, "local", "--host", "h0,h1", "-n", "2", "--nnodes", "2")
    wait_until_they_run(bed, job, "h0", "h1")
    bed["h1"].stop_sshd()
    bed["h1"].kill()
    _, err = job.communicate(timeout=200)

    assert job.returncode == 125, err
    attempts = err[err.index("    attempt 0: ") :]
    assert attempts.startswith("    attempt 0: The host h1 was lost")
    assert "    attempt 2: not started: The job needs 2 hosts and" in attempts
