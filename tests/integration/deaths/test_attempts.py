"""Two attempts of one job, one after the other, in one poprun."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Poprun, mpirun_of, wait_for

from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.rules import presets

# What an instance knows of its attempt.
PROGRAM = """
import json, os, resource, sys
names = ("JOB_ID", "RESTART_COUNT", "CONTROL", "ARENA", "ENDED_INSTANCES",
         "EXECUTABLE_CACHE_PATH")
known = {name: os.environ[f"POPDIST_{name}"] for name in names}
known["MASTER_PORT"] = os.environ["MASTER_PORT"]
known["files"] = resource.getrlimit(resource.RLIMIT_NOFILE)
assert os.path.isdir(os.path.dirname(known["ENDED_INSTANCES"]))
cache, number = known["EXECUTABLE_CACHE_PATH"], known["RESTART_COUNT"]
if number == "1":
    assert {"0.0", "0.1"} <= set(os.listdir(cache))
open(os.path.join(cache, f"{number}.{os.environ['RANK']}"), "w").close()
with open(f"known.{number}.{os.environ['RANK']}", "w") as file:
    json.dump(known, file)
sys.exit(3 if number == "0" else 0)
"""


@pytest.mark.parametrize("launcher", ["local", "openmpi5", "hydra"])
def test_two_attempts_of_one_job_run_in_one_poprun_and_share_the_id_and_the_cache(
    poprun: Poprun, launcher: str
) -> None:
    poprun.script("program.py", PROGRAM)
    mpirun = launcher if launcher == "local" else mpirun_of(launcher)
    process = run_twice(poprun, mpirun, "--offline-mode=yes")

    _, err = process.communicate(timeout=200)

    assert process.returncode == 0, err
    first, second = (
        [known(poprun.directory, attempt, rank) for rank in range(2)]
        for attempt in range(2)
    )
    for one, other in zip(first, second, strict=True):
        same = {name: value for name, value in one.items() if other[name] == value}
        assert same == {
            "JOB_ID": one["JOB_ID"],
            "EXECUTABLE_CACHE_PATH": one["EXECUTABLE_CACHE_PATH"],
            "files": [512, 4096],
        }
        assert [one["RESTART_COUNT"], other["RESTART_COUNT"]] == ["0", "1"]
        for attempt in (one, other):
            assert not Path(str(attempt["ENDED_INSTANCES"])).parent.exists()
            assert not Path(str(attempt["EXECUTABLE_CACHE_PATH"])).exists()


def run_twice(poprun: Poprun, mpirun: str, *options: str) -> "subprocess.Popen[bytes]":
    """Start a job whose instances fail in its first attempt, with few open files."""
    return poprun.start(
        *("--mpirun", mpirun, "--keep-going", "--max-restarts", "1"),
        *("--num-instances", "2", "--num-replicas", "2", *options),
        *(sys.executable, "program.py"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (512, 4096)),
    )


# What an instance has of the job's partition. In the second attempt it waits.
ATTACHED = """
import os, popdist, sys, time
attempt, rank = os.environ["POPDIST_RESTART_COUNT"], os.environ["RANK"]
partition = os.environ["IPUOF_VIPU_API_PARTITION_ID"]
with open(f"attached.{attempt}.{rank}.new", "w") as file:
    print(partition, popdist.getDeviceId(), file=file)
os.rename(f"attached.{attempt}.{rank}.new", f"attached.{attempt}.{rank}")
while attempt == "1" and not os.path.exists("end"):
    time.sleep(0.05)
sys.exit(3 if attempt == "0" else 0)
"""


@pytest.mark.parametrize("is_killed", [False, True], ids=["ends", "is-killed"])
def test_two_attempts_run_with_one_partition_which_ends_with_the_second(
    poprun: Poprun, vipu_inventory: Path, *, is_killed: bool
) -> None:
    inventory = EmbeddedInventory(vipu_inventory, host=os.uname().nodename)
    inventory.create_cluster(presets.preset("pod64", "c64"))
    poprun.script("program.py", ATTACHED)

    process = run_twice(poprun, "local")
    files = [poprun.directory / f"attached.{n}.{r}" for n in (0, 1) for r in (0, 1)]
    wait_for(lambda: all(file.exists() for file in files), "both attempts")
    [partition] = inventory.list_partitions()
    [lease] = inventory.list_leases()
    if is_killed:
        process.kill()
    else:
        (poprun.directory / "end").touch()
    _, err = process.communicate(timeout=200)

    assert process.returncode == (-signal.SIGKILL if is_killed else 0), err
    texts = [file.read_text() for file in files]
    assert texts[:2] == texts[2:]
    assert [text.split()[0] for text in texts] == [partition.name] * 4
    assert len(set(texts)) == 2
    # Its guard, which was given the end action, releases the lease of a killed one.
    wait_for(
        lambda: not (inventory.list_leases() or inventory.list_partitions()),
        f"the release of {lease}",
    )
    inventory.close()


def known(directory: Path, attempt: int, rank: int) -> dict[str, object]:
    text = (directory / f"known.{attempt}.{rank}").read_text()
    found: dict[str, object] = json.loads(text)
    return found
