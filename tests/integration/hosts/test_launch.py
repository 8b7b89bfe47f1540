"""Jobs on several hosts: started by each MPI, supervised by an agent on each host."""

import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable

import pytest
from beds.bed import Bed
from conftest import mpirun_of, wait_for

from poprun.reach.own_host.facts import own_facts

pytestmark = pytest.mark.mpi

MPIS = ["openmpi5", "openmpi4", "hydra", "local"]
WHERE = "import os, socket; print(os.environ['RANK'], socket.gethostname())"


def poprun(mpi: str, *words: str) -> list[str]:
    path = "local" if mpi == "local" else mpirun_of(mpi)
    return ["poprun", "--mpirun", path, "--offline-mode=yes", *words]


@pytest.mark.parametrize("mpi", MPIS)
def test_instances_are_shared_equally_by_the_hosts_in_blocks(
    bed: Bed, mpi: str
) -> None:
    ran = bed.front.run(
        *poprun(mpi, "--host", "h0,h1,h2", "-n", "6", "python3", "-c", WHERE)
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    assert sorted(ran.stdout.splitlines()) == [
        *("0 h0", "1 h0", "2 h1", "3 h1", "4 h2", "5 h2")
    ]


@pytest.mark.parametrize("mpi", MPIS)
def test_several_programs_are_numbered_through_the_hosts(bed: Bed, mpi: str) -> None:
    ran = bed.front.run(
        *poprun(mpi, "--host", "h0,h1", "-n", "1", "sh", "-c", "echo a $(hostname)"),
        *(":", "-n", "3", "--env", "A=1", "python3", "-c", f"{WHERE}; print(1/0)"),
        *(":", "-n", "2", "echo", "c"),
    )
    fine = bed.front.run(
        *poprun(mpi, "--host", "h0,h1", "-n", "1", "sh", "-c", "echo 0 $(hostname)"),
        *(":", "-n", "3", "python3", "-c", WHERE),
    )

    assert ran.returncode == 1
    cause = ran.stderr.splitlines()[-1].removeprefix("poprun: error: ")
    rank = int(cause.split()[1])
    assert rank in (1, 2, 3)
    assert cause == (
        f"Instance {rank} (python3 -c) on {'h0' if rank < 3 else 'h1'} exited with "
        "code 1: ZeroDivisionError: division by zero"
    )
    assert (fine.returncode, fine.stderr) == (0, "")
    assert sorted(fine.stdout.splitlines()) == ["0 h0", "1 h0", "2 h1", "3 h1"]


def test_auto_counts_the_cpus_of_each_host(make_bed: Callable[..., Bed]) -> None:
    bed = make_bed(hosts=2)
    # What a login on h1 may use.
    first = min(os.sched_getaffinity(0))
    bed["h1"].output("sh", "-c", f"taskset -cp {first} $(cat /run/sshd.pid)")

    ran = bed.front.run(
        *poprun("local", "--host", "h0,h1", "-n", "auto", "python3", "-c", WHERE)
    )

    assert (ran.returncode, sorted(ran.stdout.splitlines())) == (0, ["0 h0", "1 h1"])
    if own_facts().num_usable_cpus > 1:
        assert ran.stderr == (
            "poprun: warning: auto starts 1 instance on each of the 2 hosts, as many "
            "as fit on h1: all hosts get the same number.\n"
        )


def test_auto_is_the_sum_of_the_slots(bed: Bed) -> None:
    ran = bed.front.run(
        *("sh", "-c", 'printf "h0 slots=3\\nh1 slots=3\\n" > slots; exec "$@"', "sh"),
        *poprun("openmpi5", "--hostfile", "slots", "-n", "auto"),
        *("python3", "-c", WHERE),
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    assert sorted(ran.stdout.splitlines()) == [
        *("0 h0", "1 h0", "2 h0", "3 h1", "4 h1", "5 h1")
    ]


@pytest.mark.parametrize("mpi", ["openmpi5", "openmpi4", "hydra"])
def test_programs_reach_each_other_by_mpi(bed: Bed, mpi: str) -> None:
    program = "from mpi4py import MPI; w = MPI.COMM_WORLD; print(w.allreduce(w.rank))"

    ran = bed.front.run(
        *poprun(mpi, "--host", "h[1-2]", "-n", "4", "python3", "-c", program)
    )

    assert (ran.returncode, ran.stdout) == (0, "6\n" * 4)


@pytest.mark.parametrize("mpi", MPIS)
def test_the_first_failure_on_any_host_is_the_cause_and_stops_the_others(
    bed: Bed, mpi: str
) -> None:
    program = 'echo up; if [ "$RANK" = 3 ]; then read -r line; exit 7; fi; sleep 600'
    words = ("--host", "h0,h1", "-n", "4", "--stdin", "3", "sh", "-c", program)
    process = bed.front.start(
        *poprun(mpi, *words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    # What does not run yet when an instance fails is not started, and not stopped.
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(4)] == [b"up\n"] * 4

    _, err = process.communicate(b"fail\n", timeout=200)

    assert process.returncode == 7
    summary, cause = err.decode().splitlines()
    assert summary.startswith("poprun: 4 instances: 1 failed (3), 3 stopped (0-2); ")
    assert cause == "poprun: error: Instance 3 on h1 exited with code 7."


def test_each_instance_reads_its_copy_of_the_standard_input(bed: Bed) -> None:
    text = "".join(f"{number}\n" for number in range(200_000))
    program = "import sys; print(len(sys.stdin.read()))"

    ran = bed.front.run(
        *poprun("local", "--host", "h0,h1", "-n", "4", "--stdin", "all"),
        *("python3", "-c", program),
        stdin=text,
    )

    assert (ran.returncode, ran.stdout) == (0, f"{len(text)}\n" * 4)


def test_output_is_whole_however_slowly_it_is_read(bed: Bed) -> None:
    program = "for _ in range(100_000): print('x' * 79)"

    ran = bed.front.run(
        *poprun("local", "--host", "h1,h2", "-n", "2", "python3", "-c", program)
    )

    assert ran.returncode == 0
    # A host that is slow in the middle of a line lets lines of the other one go first.
    assert Counter(ran.stdout) == {"x": 79 * 200_000, "\n": 200_000}


@pytest.mark.parametrize("mpi", MPIS)
def test_an_instance_of_another_host_that_is_killed_is_the_cause(
    bed: Bed, mpi: str
) -> None:
    # Whether memory was short there is asked when the agent has ended.
    program = 'if [ "$RANK" = 3 ]; then kill -9 $$; fi; sleep 600'

    ran = bed.front.run(*poprun(mpi, "--host", "h0,h1", "-n", "4", "sh", "-c", program))

    assert ran.returncode == 137
    cause = "poprun: error: Instance 3 on h1 was killed by SIGKILL. poprun did not "
    assert ran.stderr.splitlines()[-1].startswith(cause)


def test_instances_have_the_limits_of_their_host_and_what_the_caller_ignores(
    bed: Bed,
) -> None:
    program = "ulimit -Sn; umask; awk '/SigIgn/ {print substr($2, 16)}' /proc/$$/status"
    words = poprun("local", "--host", "h0,h1", "-n", "2", "sh", "-c", program)

    ran = bed.front.run(
        *("sh", "-c", 'trap "" HUP; ulimit -Sn 500; umask 027; exec "$@"', "sh"),
        *words,
    )

    usual = bed["h1"].run("ssh", "h1", "ulimit -Sn").stdout
    assert ran.stderr == ""
    assert sorted(ran.stdout.split()) == sorted(
        f"500 0027 1 {usual.strip()} 0027 1".split()
    )


def test_an_agent_has_descriptors_for_more_instances_than_its_login_allows(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(hosts=2)
    # What a login on h1 gets.
    bed["h1"].run("sh", "-c", "prlimit --nofile=48: --pid $(cat /run/sshd.pid)")

    ran = bed.front.run(
        *poprun(
            *("local", "--quiet", "--host", "h1", "-n", "20"),
            *("sh", "-c", "ulimit -Sn; sleep 1"),
        )
    )

    assert (ran.stderr, ran.stdout) == ("", "48\n" * 20)


@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("remount", ["size=64k", "ro"])
def test_a_host_without_room_in_its_shared_memory_has_the_jobs_files_elsewhere(
    bed: Bed, mpi: str, remount: str
) -> None:
    bed["h1"].output("mount", "-o", f"remount,{remount}", "/dev/shm")
    try:
        program = "import glob; print(*glob.glob('/*/poprun-*', root_dir='/'))"
        ran = bed.front.run(
            *poprun(mpi, "--host", "h0,h1", "-n", "2", "python3", "-c", program)
        )
    finally:
        bed["h1"].output("mount", "-o", "remount,rw,size=50%", "/dev/shm")

    assert (ran.returncode, ran.stderr) == (0, "")
    directories = ran.stdout.split()
    assert len(directories) == 2
    assert directories[0] == directories[1]
    assert directories[0].startswith("/tmp/poprun-")


@pytest.mark.parametrize("mpi", ["openmpi5", "local"])
def test_a_reader_that_sleeps_when_the_job_ends_misses_nothing(
    bed: Bed, mpi: str
) -> None:
    # As much as poprun, the connection, the agent and the pipes hold.
    program = (
        "import os, select\n"
        "os.set_blocking(1, False)\n"
        "written, poll = 0, select.poll()\n"
        "poll.register(1, select.POLLOUT)\n"
        # poprun and the agent may be slow to read.
        "while (ready := poll.poll(2000)) or written <= 1_000_000:\n"
        "    written += os.write(1, b'x' * 4096) if ready else 0\n"
        "open('/root/written', 'w').write(str(written))\n"
    )
    process = bed.front.start(
        *poprun(mpi, "--host", "h1", "python3", "-c", program), stdout=subprocess.PIPE
    )
    written = bed.front.path("/root/written")
    wait_for(lambda: written.exists() and bool(written.read_text()), "full pipes")
    time.sleep(1.5)  # longer than poprun waits for the last words of a dead program
    out, _ = process.communicate(timeout=200)
    expected = int(written.read_text())
    written.unlink()

    assert process.returncode == 0
    assert len(out) == expected > 1_000_000


@pytest.mark.parametrize("mpi", MPIS)
def test_variables_and_the_directory_of_options_reach_other_hosts(
    bed: Bed, mpi: str
) -> None:
    words = (
        "--env",
        "A=x=y z",
        "--env",
        "1:B=\n\u00e9",
        "--env",
        "TOKEN",
        "--cwd=/tmp",
    )
    program = (
        "import os; print([os.environ.get(n) for n in 'RANK A B TOKEN PWD'.split()])"
    )

    ran = bed.front.run(
        *poprun(mpi, "--host", "h0,h1", "-n", "2", *words, "python3", "-c", program),
        env={"TOKEN": "'secret'"},
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    assert sorted(ran.stdout.splitlines()) == [
        str(["0", "x=y z", None, "'secret'", "/tmp"]),
        str(["1", "x=y z", "\n\u00e9", "'secret'", "/tmp"]),
    ]


def test_bytes_that_are_no_text_reach_the_instances_of_all_hosts(bed: Bed) -> None:
    program = 'printf %s "$ODD|$1|$(pwd)|" | od -An -tx1 | tr -d " \\n"; echo'
    shared = bed.front.path("/root") / "d\udcfe"
    shared.mkdir()

    ran = bed.front.run(
        *poprun("local", "--host", "h0,h1", "-n", "2", "--mpi-global-args=-x ODD"),
        *("sh", "-c", program, "sh", "\udcfd"),
        env={"ODD": "\udcff\udc80", "UNUSED": "\udcff"},
        cwd="/root/d\udcfe",
    )
    shared.rmdir()

    expected = b"\xff\x80|\xfd|/root/d\xfe|".hex()
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == f"{expected}\n" * 2


def test_what_python_sets_for_itself_is_passed_on_by_no_host(bed: Bed) -> None:
    # A login on a host has no language here.
    ran = bed.front.run(
        *poprun("local", "--host", "h0,h1", "-n", "2", "sh", "-c", "env | grep ^LC_")
    )

    assert ran.stdout == ""
