"""Where instances run: inside the caller's mask, as the kernel reports it."""

import os
import re
import subprocess

import pytest
from conftest import POPRUN, Poprun

from poprun.reach.own_host.facts import own_facts

# Says where it runs, and waits until it may end.
WHERE = """
import os, time
rank = os.environ["RANK"]
with open("cpus." + rank, "w") as file:
    print(*sorted(os.sched_getaffinity(0)), file=file)
    print(os.environ["OMP_NUM_THREADS"], file=file)
while os.path.exists("wait"):
    time.sleep(0.01)
"""
CPUS = sorted(os.sched_getaffinity(0))
TWO = CPUS[:2]


def job(instances: int, mpirun: str = "local") -> list[str]:
    number = str(instances)
    return ["--mpirun", mpirun, "--num-instances", number, "--num-replicas", number]


def run_on(cpus: list[int], poprun: Poprun, *options: str) -> str:
    """Run WHERE from a caller who may use these CPUs only; return poprun's log."""
    poprun.script("where.py", WHERE)
    environ = {**poprun.environ, "SLURMD_NODENAME": "localhost"}
    environ.pop("OMP_NUM_THREADS", None)
    ran = subprocess.run(
        [
            *("taskset", "--cpu-list", ",".join(map(str, cpus))),
            *(POPRUN, *options, "python", "where.py"),
        ],
        cwd=poprun.directory,
        env=environ,
        capture_output=True,
        timeout=200,
    )
    assert (ran.returncode, ran.stdout) == (0, b"")
    return ran.stderr.decode()


def told(poprun: Poprun, instances: int) -> list[tuple[list[int], int]]:
    """Return the CPUs of each instance, and how many threads it was told to start."""
    found = []
    for rank in range(instances):
        cpus, threads = (poprun.directory / f"cpus.{rank}").read_text().splitlines()
        found.append(([int(cpu) for cpu in cpus.split()], int(threads)))
    return found


@pytest.mark.mpi
def test_instances_are_given_the_cores_of_the_mask_in_turn(
    poprun: Poprun, every_mpirun: str
) -> None:
    assert len(TWO) == 2, "this needs a machine with two CPUs"
    options = (*job(3, every_mpirun), "--process-placement=spreadcores")
    run_on(TWO, poprun, *options)

    first, second = TWO
    assert told(poprun, 3) == [([first], 1), ([second], 1), ([first], 1)]


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--process-placement=spreadnuma",),
        ("--process-placement=spreadcores",),
        ("--process-placement=disabled",),
        ("--numa-aware=yes",),
        ("--numa-aware=no",),
        ("--mpi-global-args", "--bind-to core"),
    ],
    ids=" ".join,
)
def test_no_way_of_placing_leaves_a_mask_of_one_cpu(
    poprun: Poprun, options: tuple[str, ...]
) -> None:
    run_on(CPUS[-1:], poprun, *job(3), *options)

    assert told(poprun, 3) == [(CPUS[-1:], 1)] * 3


@pytest.mark.parametrize("cpus", [CPUS[:1], CPUS])
def test_auto_starts_an_instance_for_each_cpu_of_the_mask(
    poprun: Poprun, cpus: list[int]
) -> None:
    # It is fewer only where the quota of a cgroup is.
    number = min(len(cpus), own_facts().num_usable_cpus)

    run_on(cpus, poprun, "--mpirun", "local", "-n", "auto")

    names = {path.name for path in poprun.directory.glob("cpus.*")}
    assert names == {f"cpus.{rank}" for rank in range(number)}


def test_without_placement_each_instance_has_the_whole_mask(poprun: Poprun) -> None:
    run_on(TWO, poprun, *job(2), "--process-placement=disabled")

    assert told(poprun, 2) == [(TWO, 1), (TWO, 1)]


def test_one_instance_alone_may_use_all_that_its_caller_may(poprun: Poprun) -> None:
    run_on(TWO, poprun, *job(1))

    assert told(poprun, 1) == [(TWO, 2)]


@pytest.mark.mpi
def test_the_binding_that_v_shows_is_the_kernels(
    poprun: Poprun, every_mpirun: str
) -> None:
    poprun.script("where.py", WHERE)
    (poprun.directory / "wait").touch()
    process = poprun.start(
        *job(2, every_mpirun),
        *("-v", "--process-placement=spreadcores", "python", "where.py"),
        preexec_fn=lambda: os.sched_setaffinity(0, TWO),
    )
    assert process.stderr
    shown: dict[int, str] = {}
    while len(shown) < 2:
        line = process.stderr.readline().decode()
        assert line, "poprun ended before it had said where instances run"
        if found := re.search(r"Instance (\d) \(PID \d+\) runs on CPUs (.*)", line):
            shown[int(found[1])] = found[2]
    (poprun.directory / "wait").unlink()
    process.communicate(timeout=200)

    assert [cpus for cpus, _ in told(poprun, 2)] == [TWO[:1], TWO[1:]]
    assert shown == {0: str(TWO[0]), 1: str(TWO[1])}
