"""The engine on machines that have little shared memory, or none."""

import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from jobs import PROLOGUE, ROOT, environments

CGROUPS = Path("/sys/fs/cgroup")

# What /dev/shm is in a mount namespace of the test's own.
SHM = {
    "missing": "mount -t tmpfs none /dev",
    "full": (
        "mount -t tmpfs -o size=1m none /dev/shm; "
        "dd if=/dev/zero of=/dev/shm/fill bs=64k 2>&1 | grep -q 'No space left'"
    ),
    "1 MiB": "mount -t tmpfs -o size=1m none /dev/shm",
    "read-only": "mount -t tmpfs -o ro none /dev/shm",
}

# Arrays for all algorithms, longer than slots are, and one that lives in the arena.
PROGRAM = """
group = popdist.replica_group()
x = np.full((1, 2 << 20), rank + 1.0, np.float32)
assert (group.all_reduce(x[:, :4]) == 3).all()
for algorithm in ("direct", "ring"):
    assert (group.all_reduce(x, algorithm=algorithm) == 3).all()
shared = group.empty((1, 1 << 20), np.float32)
shared[:] = rank + 1
print(group.all_reduce(shared, out=shared)[0, -1], collectives.allReduceSum(np.ones(1)))
"""


def run(before: Sequence[str], program: str) -> list[tuple[int, str, str]]:
    """Run a job of two, each started by these words, and return how they ended."""
    started = [
        subprocess.Popen(
            [*before, sys.executable, "-c", PROLOGUE + program],
            cwd=ROOT,
            env={**os.environ, **told},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for told in environments((1, 1))
    ]
    try:
        said = [one.communicate(timeout=200) for one in started]
    finally:
        for one in started:
            one.kill()
            one.wait()
    return [(one.returncode, *text) for one, text in zip(started, said, strict=True)]


@contextmanager
def memory_cgroup(limit: int) -> Iterator[Path]:
    """Make a group of processes that may have so much memory, which root can."""
    version_1 = (CGROUPS / "memory").is_dir()
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    fields = [line.split(":", 2) for line in lines]
    wanted = "memory" if version_1 else ""
    [own] = [path for _, controllers, path in fields if controllers == wanted]
    top = CGROUPS / wanted
    # A container may see its own group as the uppermost.
    parent = top / own.lstrip("/")
    group = (parent if parent.is_dir() else top) / f"popdist-{random.getrandbits(64)}"
    group.mkdir()
    try:
        name = "memory.limit_in_bytes" if version_1 else "memory.max"
        (group / name).write_text(str(limit))
        yield group
    finally:
        until = time.monotonic() + 200
        while (group / "cgroup.procs").read_text() and time.monotonic() < until:
            time.sleep(0.01)
        group.rmdir()


@pytest.mark.parametrize("change", SHM.values(), ids=SHM)
def test_the_engine_needs_no_dev_shm(change: str) -> None:
    script = f'set -e; {change}; exec "$@"'

    ended = run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh"], PROGRAM
    )

    assert ended == [(0, "3.0 [2.]\n", "")] * 2


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (1 << 19, r"met\n"),
        (
            1 << 27,
            r"The instances of this host need 3(\.\d+)? GiB of shared memory, but the "
            r"memory cgroup of instance 0 has only [\d.]+ MiB left\. Raise its limit, "
            r"or start fewer instances on this host\.\n",
        ),
    ],
    ids=["fits", "refused"],
)
def test_in_a_small_memory_cgroup_an_arena_fits_or_is_refused_on_all(
    block: int, said: str
) -> None:
    program = f"""
from popdist.engine.tuning import Tuning
from tests.popdist.engine.members import group_of
name = os.environ["POPDIST_ARENA"]
tuning = Tuning(oneshot_bytes=2048, block_bytes={block}, spin_us=0)
try:
    group_of(name, rank, 2, tuning=tuning).barrier()
    print("met")
except popdist.ArenaError as error:
    print(error)
"""
    with memory_cgroup(256 << 20) as group:
        join = f'echo $$ > "{group}/cgroup.procs"; exec "$@"'
        ended = run(["sh", "-c", join, "sh"], program)

    assert [(code, err) for code, _, err in ended] == [(0, "")] * 2
    for _, out, _ in ended:
        assert re.fullmatch(said, out), out
