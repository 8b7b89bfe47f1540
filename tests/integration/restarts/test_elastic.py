"""Elastic jobs over hosts: the hosts of the next attempt after a loss or a return."""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Sequence

import pytest
from beds.bed import Bed
from conftest import ROOT, mpirun_of, wait_for

pytestmark = pytest.mark.mpi

# Its waits are short.
POPRUN = str(ROOT / "tests" / "often_searching_poprun.py")
# Runs on in the first attempt, and tells what it is in each other. No shell outlives
# the sleep and does so too.
PROGRAM = (
    "touch /tmp/runs-$RANK; test $POPDIST_RESTART_COUNT != 0 || exec sleep 600; "
    "echo $RANK of $WORLD_SIZE, replicas $POPDIST_NUM_TOTAL_REPLICAS on $(uname -n)"
)

# Says which attempt it is, and what it is in that, and leaves a mark after that.
ANNOUNCE = (
    "echo attempt $POPDIST_RESTART_COUNT after $TORCHELASTIC_RESTART_COUNT failures: "
    "$RANK of $WORLD_SIZE on $(uname -n); touch /tmp/runs-$POPDIST_RESTART_COUNT-$RANK"
)


def start(
    bed: Bed,
    mpi: str,
    *words: str,
    program: str = PROGRAM,
    poprun: Sequence[str] = ("python3", POPRUN),
) -> "subprocess.Popen[str]":
    path = "local" if mpi == "local" else mpirun_of(mpi)
    job: subprocess.Popen[str] = bed.front.start(
        *(*poprun, "--mpirun", path, "--offline-mode=yes", "--grace=1"),
        *("--max-restarts", "2", *words, "sh", "-c", program),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return job


def wait_until_they_run(bed: Bed, job: "subprocess.Popen[str]", *hosts: str) -> None:
    """Wait for the first attempt: each rank is on the host at its place."""
    wait_for_marks(bed, job, "/tmp/runs-", hosts)


def wait_for_attempt(
    bed: Bed, job: "subprocess.Popen[str]", number: int, *hosts: str
) -> None:
    """Wait for an attempt with ANNOUNCE in its program."""
    wait_for_marks(bed, job, f"/tmp/runs-{number}-", hosts)


def wait_for_marks(
    bed: Bed, job: "subprocess.Popen[str]", prefix: str, hosts: Sequence[str]
) -> None:
    limit = time.monotonic() + 200
    marks = [bed[host].path(f"{prefix}{rank}") for rank, host in enumerate(hosts)]
    while not all(mark.exists() for mark in marks):
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < limit
        time.sleep(0.02)


def send_to_poprun(bed: Bed, number: int) -> None:
    bed.front.output("pkill", f"-{number}", "-f", f"{POPRUN} --mpirun")


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
    job = start(bed, mpi, *words, "--log-dir", "/tmp/logs", poprun=["poprun"])
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
    # Those of the next attempt have the same words.
    first = bed["h1"].output("pgrep", "-f", "sleep 600").split()
    bed.front.path("/tmp/hosts").write_text("h0:1\nh1:1\nh1.bed:1\nh2:1\n")
    bed["h1"].run("kill", "-KILL", *first)
    out, err = job.communicate(timeout=200)

    assert job.returncode == 0, err
    assert lines_of_last_attempt(out) == [
        "0 of 3, replicas 6 on h0",
        "1 of 3, replicas 6 on h1",
        "2 of 3, replicas 6 on h2",
    ]
    other_name = "The host h1.bed cannot join the job: it is the machine of another"
    assert f"poprun: warning: {other_name} host." in err
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
    words = (*script, "-n", "4", "--nnodes", "1:4", *files)
    job = start(bed, "local", *words, poprun=["poprun"])
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


def test_a_job_is_started_again_without_a_host_that_its_file_no_longer_names(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(hosts=2)
    hosts = bed.front.path("/tmp/hosts")
    hosts.write_text("h0:1\nh1:1\n")
    words = ("--hostfile", "/tmp/hosts", "-n", "2", "--min-instances", "1")
    program = f"{ANNOUNCE}; test $POPDIST_RESTART_COUNT = 1 || sleep 600"
    job = start(bed, "openmpi5", *words, program=program)
    wait_for_attempt(bed, job, 0, "h0", "h1")
    hosts.write_text("h0:1\n")
    out, err = job.communicate(timeout=200)

    assert job.returncode == 0, err
    assert out.splitlines()[-1] == "attempt 1 after 0 failures: 0 of 1 on h0"
    assert (
        "poprun: the hostfile no longer names h1: stopping the instances, to go on "
        "with 1.\n"
        "poprun: the job has 1 instance of at most 2 now, on h0.\n"
        "poprun: the attempts of the job:\n"
        "    attempt 0: The job goes from 2 to 1 instance, because the hostfile no "
        "longer names h1.\n"
        "    attempt 1: succeeded\n"
    ) in err
    assert_no_process_is_left(bed)


def test_a_job_is_started_again_on_a_host_that_its_file_names_in_place_of_another(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(hosts=3)
    hosts = bed.front.path("/tmp/hosts")
    hosts.write_text("h0:1\nh1:1\n")
    words = ("--hostfile", "/tmp/hosts", "-n", "2", "--min-instances", "2")
    program = f"{ANNOUNCE}; test $POPDIST_RESTART_COUNT = 1 || sleep 600"
    job = start(bed, "openmpi5", *words, program=program)
    wait_for_attempt(bed, job, 0, "h0", "h1")
    hosts.write_text("h0:1\nh2:1\n")
    out, err = job.communicate(timeout=200)

    assert job.returncode == 0, err
    assert lines_of_last_attempt(out)[-2:] == [
        "attempt 1 after 0 failures: 0 of 2 on h0",
        "attempt 1 after 0 failures: 1 of 2 on h2",
    ]
    why = "the hostfile no longer names h1 and the host h2 can be used"
    assert (
        f"poprun: {why}: stopping the instances, to go on with 2.\n"
        "poprun: the job has 2 instances of at most 2 now, on h0, h2.\n"
        "poprun: the attempts of the job:\n"
        f"    attempt 0: The job goes on with 2 instances, because {why}.\n"
        "    attempt 1: succeeded\n"
    ) in err
    assert_no_process_is_left(bed)


def test_a_host_stays_if_the_job_cannot_be_started_without_it(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(hosts=2)
    create = ("vipu", "create", "partition", "P", "--size", "4", "--num-gcds", "2")
    bed.front.output(*create)
    hosts = bed.front.path("/tmp/hosts")
    hosts.write_text("h0:1\nh1:1\n")
    words = ("--hostfile", "/tmp/hosts", "-n", "2", "--min-instances", "1")
    devices = ("--offline-mode=no", "--vipu-partition=P", "--ipus-per-replica=2")
    program = f"{ANNOUNCE}; while ! test -e /tmp/end; do sleep 0.1; done"
    job = start(bed, "local", *words, *devices, program=program)
    wait_for_attempt(bed, job, 0, "h0", "h1")
    hosts.write_text("h0:1\n")
    assert job.stderr is not None
    err = ""
    for line in job.stderr:
        err += line
        if "keeps its hosts" in line:
            break
    for host in bed.hosts:
        host.path("/tmp/end").touch()
    _, rest = job.communicate(timeout=200)

    assert job.returncode == 0, err + rest
    assert err.endswith(
        "poprun: warning: The hostfile no longer names h1, but the job keeps its "
        "hosts: it could not be started on the others.\n"
    )
    assert rest.count("\n") == 4
    assert "has 4 IPUs where the job asks for 2" in rest
    assert rest.endswith("    attempt 2: succeeded\n")
    assert_no_process_is_left(bed)


def test_a_lost_host_that_answers_again_takes_part_without_a_failure(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(hosts=2)
    program = f"{ANNOUNCE}; test $POPDIST_RESTART_COUNT = 2 || sleep 600"
    words = ("--host", "h0,h1", "-n", "2", "--min-instances", "1")
    job = start(bed, "local", *words, program=program)
    wait_for_attempt(bed, job, 0, "h0", "h1")
    bed["h1"].stop_sshd()
    bed["h1"].run("pkill", "-KILL", "-f", "host/agent_entry.py")
    wait_for_attempt(bed, job, 1, "h0")
    bed["h1"].start_sshd()
    bed["h1"].note_own()
    out, err = job.communicate(timeout=200)

    assert job.returncode == 0, err
    # The first line of the lost host may not have come.
    assert sorted(line for line in out.splitlines() if "attempt 0" not in line) == [
        "attempt 1 after 1 failures: 0 of 1 on h0",
        "attempt 2 after 1 failures: 0 of 2 on h0",
        "attempt 2 after 1 failures: 1 of 2 on h1",
    ]
    assert "    attempt 1: The job grows from 1 to 2 instances, because" in err
    assert_no_process_is_left(bed)


@pytest.mark.parametrize(
    ("script", "warning"),
    [
        pytest.param("echo h0; exit 3", "exits with code 3", id="fails"),
        pytest.param("echo '<html>'", "is not a host name", id="prints garbage"),
        pytest.param(
            "setsid sleep 600 >/dev/null & exec sleep 600", "", id="hangs and forks"
        ),
        pytest.param("kill -9 $PPID; sleep 600", "it begins again", id="kills"),
    ],
)
def test_a_job_runs_on_whatever_the_script_does(
    make_bed: Callable[..., Bed], script: str, warning: str
) -> None:
    bed = make_bed(hosts=2)
    bed.front.path("/tmp/hosts").write_text("echo h0:1\n")
    words = ("--host-discovery-script", "sh /tmp/hosts", "-n", "2", "--nnodes", "1:2")
    program = f"{ANNOUNCE}; while ! test -e /tmp/end; do sleep 0.1; done"
    job = start(bed, "local", *words, program=program)
    wait_for_attempt(bed, job, 0, "h0")
    # The first line is a mark that the script has run. It is never seen empty, which
    # would be a warning of its own.
    draft = bed.front.path("/tmp/draft")
    draft.write_text(f"touch /tmp/ran\n{script}\n")
    draft.rename(bed.front.path("/tmp/hosts"))
    wait_for(bed.front.path("/tmp/ran").exists, "the script")
    assert job.stderr is not None
    seen = ""
    while warning not in seen:
        line = job.stderr.readline()
        assert line, seen
        seen += line
    bed.front.path("/tmp/end").touch()
    out, err = job.communicate(timeout=200)

    assert job.returncode == 0, seen + err
    assert out == "attempt 0 after 0 failures: 0 of 1 on h0\n"
    assert ("The job runs on as it is.\n" in seen) == script.startswith("echo")
    assert_no_process_is_left(bed)


def test_a_host_that_is_lost_again_during_the_growth_is_left_out(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(hosts=2)
    # The second host is gone before the first has ended.
    ends = "touch /tmp/stops; while ! test -e /tmp/gone; do sleep 0.1; done; exit 0"
    program = (
        f"trap '{ends}' TERM; {ANNOUNCE}; "
        "test $POPDIST_RESTART_COUNT != 0 || while :; do sleep 0.1; done"
    )
    bed.front.path("/tmp/hosts").write_text("h0:1\n")
    words = ("--host-discovery-script", "cat /tmp/hosts", "-n", "2", "--nnodes", "1:2")
    job = start(bed, "local", *words, "--grace", "600", program=program)
    wait_for_attempt(bed, job, 0, "h0")
    bed.front.path("/tmp/hosts").write_text("h0:1\nh1:1\n")
    wait_for(bed.front.path("/tmp/stops").exists, "SIGTERM")
    bed["h1"].stop_sshd()
    bed.front.path("/tmp/gone").touch()
    out, err = job.communicate(timeout=200)

    assert job.returncode == 0, err
    assert sorted(out.splitlines()) == [
        "attempt 0 after 0 failures: 0 of 1 on h0",
        "attempt 1 after 0 failures: 0 of 1 on h0",
    ]
    assert "warning: The host h1 cannot be used" in err
    assert_no_process_is_left(bed)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_a_job_that_is_ended_during_a_growth_leaves_nothing(
    make_bed: Callable[..., Bed], number: int, code: int
) -> None:
    bed = make_bed(hosts=2)
    program = f"trap 'touch /tmp/stops' TERM; {ANNOUNCE}; while :; do sleep 0.1; done"
    bed.front.path("/tmp/hosts").write_text("h0:1\n")
    # It starts processes that the guard finds if nothing else does.
    hiding = "{ test ! -e /tmp/runs-0-0 || setsid sleep 601; } >/dev/null 2>&1 &"
    script = f"sh -c '{hiding} cat /tmp/hosts'"
    words = ("--host-discovery-script", script, "-n", "2", "--nnodes", "1:2")
    job = start(bed, "local", *words, "--grace", "600", program=program)
    wait_for_attempt(bed, job, 0, "h0")
    bed.front.path("/tmp/hosts").write_text("h0:1\nh1:1\n")
    wait_for(bed.front.path("/tmp/stops").exists, "SIGTERM")
    assert job.stdout is not None
    assert job.stderr is not None
    # Before poprun is killed, which has to pass it on.
    assert job.stdout.readline() == "attempt 0 after 0 failures: 0 of 1 on h0\n"
    send_to_poprun(bed, number)
    if number == signal.SIGTERM:
        # The program goes on, and the second signal kills it. Two that come before
        # poprun looks would be one.
        while "repeat to kill them" not in (line := job.stderr.readline()):
            assert line
        send_to_poprun(bed, number)
    out, err = job.communicate(timeout=200)

    assert job.returncode == code, err
    assert out == ""
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
