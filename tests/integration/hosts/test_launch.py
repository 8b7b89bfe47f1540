"""Jobs on several hosts: started by each MPI, supervised by an agent on each host."""

from collections.abc import Callable

import pytest
from beds.bed import Bed
from conftest import mpirun_of

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
    program = 'if [ "$RANK" = 3 ]; then exit 7; fi; sleep 60'

    ran = bed.front.run(*poprun(mpi, "--host", "h0,h1", "-n", "4", "sh", "-c", program))

    assert ran.returncode == 7
    assert ran.stderr == "poprun: error: Instance 3 on h1 exited with code 7.\n"


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
    assert ran.stdout == ("x" * 79 + "\n") * 200_000


@pytest.mark.parametrize("mpi", MPIS)
def test_an_instance_of_another_host_that_is_killed_is_the_cause(
    bed: Bed, mpi: str
) -> None:
    # Whether memory was short there is asked when the agent has ended.
    program = 'if [ "$RANK" = 3 ]; then kill -9 $$; fi; sleep 60'

    ran = bed.front.run(*poprun(mpi, "--host", "h0,h1", "-n", "4", "sh", "-c", program))

    assert ran.returncode == 137
    assert ran.stderr == "poprun: error: Instance 3 on h1 was killed by SIGKILL.\n"


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
        *poprun("local", "--host", "h1", "-n", "20", "sh", "-c", "ulimit -Sn; sleep 1")
    )

    assert (ran.stderr, ran.stdout) == ("", "48\n" * 20)
