"""Each host has a temporary executable cache of its own; offline mode on several hosts.

The fixture `bed` checks after each test that no cache is left on any host.
"""

import signal
import subprocess

import pytest
from beds.bed import Bed
from conftest import wait_for

pytestmark = pytest.mark.mpi

# Each instance leaves an executable in the cache, and waits for the other of its host.
PROGRAM = """
import os, socket, sys, time
cache, rank = os.environ["POPDIST_EXECUTABLE_CACHE_PATH"], os.environ["RANK"]
open(f"{cache}/{rank}", "w").close()
while len(os.listdir(cache)) < 2: time.sleep(0.01)
print(rank, socket.gethostname(), *sorted(os.listdir(cache)), flush=True)
time.sleep(float(sys.argv[1]))
"""


def poprun(seconds: float, *words: str) -> list[str]:
    where = ("--mpirun", "local", "--grace", "1", "--host", "h0,h1", "-n", "4")
    program = ("python3", "-c", PROGRAM, str(seconds))
    return ["poprun", *where, "--offline-mode=yes", *words, *program]


@pytest.mark.parametrize("num_ilds", [1, 2])
def test_the_instances_of_each_host_share_a_cache(bed: Bed, num_ilds: int) -> None:
    ran = bed.front.run(*poprun(0, f"--num-ilds={num_ilds}"))

    assert (ran.returncode, ran.stderr) == (0, "")
    assert sorted(ran.stdout.splitlines()) == [
        *("0 h0 0 1", "1 h0 0 1", "2 h1 2 3", "3 h1 2 3")
    ]


def start_with_caches(bed: Bed) -> "subprocess.Popen[bytes]":
    """Start a job, and return when all its instances have written to their caches."""
    job = bed.front.start(*poprun(600))

    def has_two_caches() -> bool:
        assert job.poll() is None
        caches = [list(h.path("/tmp").glob("poprun-cache-*/*")) for h in bed.hosts[:2]]
        return [len(files) for files in caches] == [2, 2]

    wait_for(has_two_caches, "the caches of two hosts")
    return job


@pytest.mark.parametrize(
    ("host", "pattern", "number"),
    [
        pytest.param("h0", "bin/poprun ", signal.SIGINT, id="Ctrl-C"),
        pytest.param("h0", "bin/poprun ", signal.SIGKILL, id="poprun"),
        pytest.param("h0", "bin/poprun |entry.py guard", signal.SIGKILL, id="guard"),
        pytest.param("h1", "host/agent_entry.py", signal.SIGKILL, id="agent"),
        pytest.param(
            "h1",
            "host/agent_entry.py|entry.py shim",
            signal.SIGKILL,
            id="agent-and-shims",
        ),
        pytest.param("h1", "^python3 -c", signal.SIGKILL, id="instances"),
    ],
)
def test_every_cache_is_removed_whatever_ends_the_job(
    bed: Bed, host: str, pattern: str, number: int
) -> None:
    job = start_with_caches(bed)

    bed[host].run("pkill", f"-{number}", "-f", pattern)

    assert job.wait(200) != 0


def test_the_next_job_removes_the_cache_of_a_host_whose_supervisors_were_killed(
    bed: Bed,
) -> None:
    job = start_with_caches(bed)
    # Stopped first, so that none acts on the end of another.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        bed["h1"].run(
            "pkill", f"-{number}", "-f", "host/agent_entry|entry.py (guard|shim)"
        )
    job.wait(200)

    assert bed.front.run(*poprun(0)).returncode == 0
