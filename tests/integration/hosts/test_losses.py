"""What happens when a part of a job on several hosts dies, stops or is cut off.

The fixture `bed` checks after each test that nothing of the job is left on any host.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable

import pytest
from beds.bed import Bed
from beds.mpiruns import launcher

from poprun.reach.connections.silence import SILENT_S

pytestmark = pytest.mark.mpi

MPIS = ["openmpi5", "openmpi4", "hydra", "local"]
# Ignores SIGTERM, leaves its session and its environment, and says so.
STUBBORN = (
    "trap '' TERM; setsid env -i /bin/sleep 601 & touch /tmp/runs-$RANK; sleep 600"
)

# One instance ends in the middle of what the others go on with.
EXITS = """
import sys
import numpy as np
import popdist

group = popdist.instance_group()
for step in range(10):
    if step == 5 and group.rank == int(sys.argv[1]):
        sys.exit(3)
    group.all_reduce(np.ones(1000, np.float32))
"""


# One instance is killed; the others catch the error, and go on without the group. None
# of them ends before all have the error, or it would be one more that was lost. The
# hosts share /root.
CATCHES = """
import glob, os, signal, time
import numpy as np
import popdist
from popdist.errors import PeerLostError

group = popdist.instance_group()
try:
    for step in range(100):
        if step == 5 and group.rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        group.all_reduce(np.ones(300_000, np.float32))
except PeerLostError as error:
    open(f"/root/caught-{group.rank}", "w").close()
    while len(glob.glob("/root/caught-*")) < 3:
        time.sleep(0.02)
    print(group.rank, *error.instances)
"""


class RunningJob:
    """A job of four instances on h0 and h1, all of which run."""

    def __init__(self, bed: Bed, mpi: str, hosts: str = "h0,h1") -> None:
        self.bed = bed
        self.poprun = bed.front.start(
            *(
                "poprun",
                "--mpirun",
                launcher(mpi),
                "--offline-mode=yes",
                "--grace",
                "1",
            ),
            *("--host", hosts, "-n", "4", "sh", "-c", STUBBORN),
            stderr=subprocess.PIPE,
            text=True,
        )
        limit = time.monotonic() + 200
        for rank in range(4):
            host = bed[hosts.split(",")[rank // 2]]
            while not host.path(f"/tmp/runs-{rank}").exists():
                assert self.poprun.poll() is None, self.poprun.communicate()
                assert time.monotonic() < limit
                time.sleep(0.02)
        for host in bed.hosts:
            host.run("sh", "-c", "rm -f /tmp/runs-*")

    def pids(self, host: str, pattern: str) -> list[int]:
        found = self.bed[host].run("pgrep", "-f", pattern).stdout
        return [int(pid) for pid in found.split()]

    def send(self, number: int, host: str, pattern: str) -> None:
        pids = self.pids(host, pattern)
        assert pids
        self.bed[host].run("kill", f"-{number}", *map(str, pids))

    def end(self) -> tuple[int, str]:
        _, stderr = self.poprun.communicate(timeout=200)
        return self.poprun.returncode, stderr


AGENT = "host/agent_entry.py"
GUARD = "entry.py guard"
POPRUN = "bin/poprun "
SHIM = "entry.py shim .* POPDIST_CONTROL"


@pytest.mark.parametrize("mpi", MPIS)
def test_nothing_stays_on_any_host_when_poprun_is_killed(bed: Bed, mpi: str) -> None:
    job = RunningJob(bed, mpi)

    job.send(signal.SIGKILL, "h0", POPRUN)

    assert job.end()[0] == -signal.SIGKILL


@pytest.mark.parametrize("mpi", MPIS)
def test_nothing_stays_when_poprun_and_its_guard_are_killed(bed: Bed, mpi: str) -> None:
    job = RunningJob(bed, mpi)

    job.send(signal.SIGKILL, "h0", f"{POPRUN}|{GUARD}")

    assert job.end()[0] == -signal.SIGKILL


@pytest.mark.parametrize(
    ("supervisor", "name"),
    [
        pytest.param(AGENT, "agent", id="agent"),
        pytest.param(GUARD, "guard", id="guard"),
    ],
)
@pytest.mark.parametrize("mpi", MPIS)
def test_a_host_whose_supervisor_is_killed_is_named(
    bed: Bed, mpi: str, supervisor: str, name: str
) -> None:
    job = RunningJob(bed, mpi)

    job.send(signal.SIGKILL, "h1", supervisor)

    code, stderr = job.end()
    assert code == 125
    assert (
        f"poprun: error: The host h1 was lost: poprun's {name} there was killed. "
        "Instances 2-3 were on it, and the job was stopped." in stderr
    )


@pytest.mark.parametrize("mpi", MPIS)
def test_a_shim_of_another_host_that_is_killed_is_the_cause(bed: Bed, mpi: str) -> None:
    job = RunningJob(bed, mpi)

    job.send(signal.SIGKILL, "h1", f"{SHIM} 3")

    code, stderr = job.end()
    assert code == 125
    assert "instance 3 on h1 was killed" in stderr


@pytest.mark.parametrize("mpi", MPIS)
def test_instances_that_catch_the_loss_of_another_go_on_and_succeed(
    bed: Bed, mpi: str
) -> None:
    ran = bed.front.run(
        *("poprun", "--mpirun", launcher(mpi), "--offline-mode=yes", "--keep-going"),
        *("--host", "h0,h1", "-n", "4", "python3", "-c", CATCHES),
        timeout=200,
    )
    bed.front.run("sh", "-c", "rm -f /root/caught-*")

    assert ran.returncode == 128 + signal.SIGKILL
    assert sorted(ran.stdout.splitlines()) == ["0 3", "1 3", "2 3"]
    assert "poprun: 4 instances: 3 succeeded (0-2), 1 failed (3); " in ran.stderr


@pytest.mark.parametrize("mpi", MPIS)
def test_a_signal_ends_the_instances_of_all_hosts(bed: Bed, mpi: str) -> None:
    job = RunningJob(bed, mpi)

    os.kill(job.poprun.pid, signal.SIGTERM)

    code, stderr = job.end()
    assert code == 128 + signal.SIGTERM
    assert stderr.endswith("poprun: error: Stopped by SIGTERM.\n")


def test_a_host_that_is_cut_off_is_named_and_cleans_up_by_itself(bed: Bed) -> None:
    job = RunningJob(bed, "openmpi5")

    bed["h1"].link.cut()
    limit = time.monotonic() + 200
    try:
        code, stderr = job.end()
        # sshd has not heard that its connection is gone.
        while left := [name for name in bed.leftovers() if "sshd" not in name]:
            assert time.monotonic() < limit, left
            time.sleep(0.1)
    finally:
        bed["h1"].link.mend()

    assert code == 125
    assert "The host h1 was lost: it does not answer" in stderr


# poprun, which takes a host for lost some seconds later: an instance that is slow to
# detect it has time to fail.
PATIENT = (
    "from poprun.reach.connections import silence; silence.SILENT_S = 14.0; "
    "from poprun.__main__ import main; main()"
)


def test_a_host_that_is_cut_off_is_the_cause_although_others_fail_before(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(hosts=2)
    program = (
        "import os, numpy as np, popdist\n"
        "group = popdist.instance_group()\n"
        "group.barrier()\n"
        "open(f'/tmp/runs-{group.rank}', 'w').close()\n"
        "while True: group.all_reduce(np.ones(1000))\n"
    )
    job = bed.front.start(
        *("python3", "-c", PATIENT, "--mpirun=local", "--grace=60"),
        *("--offline-mode=yes", "--host=h0,h1", "-n2", "python3", "-c", program),
        stderr=subprocess.PIPE,
        text=True,
    )
    while not bed["h1"].path("/tmp/runs-1").exists():
        assert job.poll() is None, job.communicate()
        time.sleep(0.02)

    bed["h1"].link.cut()

    _, stderr = job.communicate(timeout=200)
    assert "PeerLostError: Instance 1 on h1 has not answered for 5 s, while" in stderr
    assert stderr.splitlines()[-1] == (
        "poprun: error: The host h1 was lost: it does not answer or acknowledge what "
        "is sent. Instance 1 was on it, and the job was stopped."
    )
    assert job.returncode == 125


@pytest.mark.parametrize("mpi", MPIS)
def test_a_host_that_is_cut_off_cleans_up_although_its_agent_was_killed(
    bed: Bed, mpi: str
) -> None:
    job = RunningJob(bed, mpi)
    h1 = bed["h1"]

    h1.link.cut()
    try:
        job.send(signal.SIGKILL, "h1", f"{AGENT}|{SHIM}")
        limit = time.monotonic() + 200
        while left := [p for p in [*h1.processes(), *h1.files()] if "sshd" not in p]:
            assert time.monotonic() < limit, left
            time.sleep(0.1)
    finally:
        h1.link.mend()
    job.end()


def test_a_job_outlives_stops_that_are_longer_than_a_silence(bed: Bed) -> None:
    job = RunningJob(bed, "openmpi5")

    job.send(signal.SIGSTOP, "h0", POPRUN)
    job.send(signal.SIGSTOP, "h1", AGENT)
    time.sleep(SILENT_S + 6)
    job.send(signal.SIGCONT, "h0", POPRUN)
    job.send(signal.SIGCONT, "h1", AGENT)

    time.sleep(1)
    assert job.poprun.poll() is None
    os.kill(job.poprun.pid, signal.SIGTERM)
    assert job.end()[0] == 128 + signal.SIGTERM


def test_nothing_waits_for_a_host_that_is_cut_off_when_poprun_is_gone(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(hosts=2)
    job = RunningJob(bed, "local")

    bed["h1"].link.cut()
    job.send(signal.SIGKILL, "h0", f"{GUARD}|{POPRUN}")
    job.end()

    limit = time.monotonic() + 200
    while left := bed.front.processes():
        assert time.monotonic() < limit, left
        time.sleep(0.1)


def test_a_host_that_is_cut_off_cleans_up_although_its_sshd_was_stopped(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(hosts=2)
    job = RunningJob(bed, "local")

    job.send(signal.SIGSTOP, "h1", "sshd: root@notty")
    bed["h1"].link.cut()
    code, stderr = job.end()

    assert code == 125
    assert "The host h1 was lost" in stderr
    limit = time.monotonic() + 200
    while left := [p for p in bed["h1"].processes() if "sshd" not in p]:
        assert time.monotonic() < limit, left
        time.sleep(0.1)


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("mpi", MPIS)
def test_an_instance_that_exits_while_others_need_it_is_the_cause(
    bed: Bed, mpi: str, rank: int
) -> None:
    job = bed.front.run(
        *("poprun", "--mpirun", launcher(mpi), "--offline-mode=yes"),
        *("--host", "h0,h1", "-n", "4", "python3", "-c", EXITS, f"{rank}"),
        timeout=200,
    )

    assert job.returncode == 3, job.stderr
    host = "h0" if rank < 2 else "h1"
    sentence = f"poprun: error: Instance {rank} on {host} exited with code 3."
    assert job.stderr.splitlines()[-1] == sentence
