"""Two attempts of one job, one after the other, in one poprun."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, Poprun, mpirun_of

# poprun that runs its job twice: what restarts will do when an instance fails.
TWICE = """
import os, resource, sys
from poprun import cli, run
from poprun.job.guard_start import start_guard
from poprun.plan import planner

prepare, run_job = run._prepare, run._run_job
arguments = []

def keep(setup, *rest):
    arguments[:] = rest
    return prepare(setup, *rest)

def twice(job, guard, setup, *rest):
    descriptors = os.listdir("/proc/self/fd")
    print("first", run_job(job, guard, setup, *rest), flush=True)
    print("open", len(os.listdir("/proc/self/fd")) - len(descriptors), flush=True)
    again = planner.next_attempt(setup, arguments[3])
    guard = start_guard(os.environ)
    return run_job(prepare(again, *arguments), guard, again, *rest)

run._prepare, run._run_job = keep, twice
resource.setrlimit(resource.RLIMIT_NOFILE, (512, 4096))
sys.exit(cli.main())
"""
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
assert all(name.startswith(f"{number}.") for name in os.listdir(cache))
open(os.path.join(cache, f"{number}.{os.environ['RANK']}"), "w").close()
with open(f"known.{number}.{os.environ['RANK']}", "w") as file:
    json.dump(known, file)
sys.exit(3 if number == "0" else 0)
"""


@pytest.mark.parametrize("launcher", ["local", "openmpi5", "hydra"])
def test_two_attempts_of_one_job_run_in_one_poprun_and_share_only_the_id(
    poprun: Poprun, launcher: str
) -> None:
    script = poprun.directory / "poprun_twice.py"
    script.write_text(TWICE)
    poprun.script("program.py", PROGRAM)
    mpirun = launcher if launcher == "local" else mpirun_of(launcher)
    process = subprocess.Popen(
        [
            *(sys.executable, str(script), "--mpirun", mpirun, "--keep-going"),
            *("--num-instances", "2", "--num-replicas", "2"),
            *(sys.executable, "program.py"),
        ],
        cwd=poprun.directory,
        env={**poprun.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    poprun.started.append(process)

    out, err = process.communicate(timeout=50)

    # The socket to the guard and the file for its output were open before.
    assert (process.returncode, out.splitlines()) == (0, [b"first 3", b"open -2"]), err
    first, second = (
        [known(poprun.directory, attempt, rank) for rank in range(2)]
        for attempt in range(2)
    )
    for one, other in zip(first, second, strict=True):
        same = {name: value for name, value in one.items() if other[name] == value}
        assert same == {"JOB_ID": one["JOB_ID"], "files": [512, 4096]}
        assert [one["RESTART_COUNT"], other["RESTART_COUNT"]] == ["0", "1"]
        for attempt in (one, other):
            assert not Path(str(attempt["ENDED_INSTANCES"])).parent.exists()
            assert not Path(str(attempt["EXECUTABLE_CACHE_PATH"])).exists()


def known(directory: Path, attempt: int, rank: int) -> dict[str, object]:
    text = (directory / f"known.{attempt}.{rank}").read_text()
    found: dict[str, object] = json.loads(text)
    return found
