"""A program of popdist.elastic whose instances are killed, below a real poprun."""

import os
import signal
from pathlib import Path

from conftest import Poprun, wait_for

# Adds up a bit of each instance: the sum tells which instances took part.
PROGRAM = """
import os, sys, time
from pathlib import Path
import numpy as np
import popdist
from popdist import elastic

folder = Path(sys.argv[1])
index = int(os.environ["OMPI_COMM_WORLD_RANK"])
state = elastic.State(step=0)
# The others go on without it first.
while "POPDIST_ELASTIC_JOINS" in os.environ and not any(folder.glob("pid-*-1")):
    time.sleep(0.01)

@elastic.run
def work(state):
    draft = folder / f"draft-{index}"
    draft.write_text(str(os.getpid()))
    draft.rename(folder / f"pid-{index}-{elastic.generation()}")
    own = np.array([1 << index, 0], np.int64)
    while True:
        group = popdist.instance_group()
        own[1] = group.rank == 0 and (folder / "stop").exists()
        total, stops = map(int, group.all_reduce(own))
        assert total.bit_count() == group.size and total >> index & 1, total
        state.step += 1
        if stops:
            return total
        state.commit()
        time.sleep(0.01)

total = work(state)
print(index, popdist.getInstanceIndex(), popdist.getNumTotalReplicas(), bin(total))
"""


def test_sums_are_right_after_each_change_of_members(poprun: Poprun) -> None:
    script = poprun.script("work.py", PROGRAM)
    folder = poprun.directory / "state"
    folder.mkdir()
    job = poprun.start(
        *("--mpirun", "local", "-n", "3", "--min-instances", "2"),
        *("--max-restarts", "1", "python", script, str(folder)),
    )
    wait_for_members(folder, 0, {0, 1, 2})
    kill(folder, 1, 0)
    # It is started again beside the others.
    wait_for_members(folder, 2, {0, 1, 2})
    kill(folder, 0, 0)
    wait_for_members(folder, 3, {1, 2})
    (folder / "stop").touch()
    out, err = job.communicate(timeout=200)

    assert job.returncode == 0, err
    assert sorted(out.decode().splitlines()) == ["1 0 2 0b110", "2 1 2 0b110"]


def test_the_others_go_on_without_a_process_whose_wrapper_does_not_end(
    poprun: Poprun,
) -> None:
    script = poprun.script("work.py", PROGRAM)
    folder = poprun.directory / "state"
    folder.mkdir()
    wrapper = f"python {script} {folder}; while ! [ -e {folder}/over ]; do sleep 0.1; "
    job = poprun.start(
        *("--mpirun", "local", "-n", "3", "--min-instances", "2"),
        *("sh", "-c", f"{wrapper}done"),
    )
    wait_for_members(folder, 0, {0, 1, 2})
    kill(folder, 1, 0)
    wait_for_members(folder, 1, {0, 2})
    (folder / "stop").touch()
    (folder / "over").touch()
    out, err = job.communicate(timeout=200)

    assert job.returncode == 0, err
    assert sorted(out.decode().splitlines()) == ["0 0 2 0b101", "2 1 2 0b101"]
    assert (
        b"The process of instance 1 that used popdist has ended; 2 instances go on"
    ) in err


def kill(folder: Path, index: int, generation: int) -> None:
    pid = int((folder / f"pid-{index}-{generation}").read_text())
    os.kill(pid, signal.SIGKILL)


def wait_for_members(folder: Path, generation: int, indices: set[int]) -> None:
    marks = [folder / f"pid-{index}-{generation}" for index in indices]
    wait_for(lambda: all(mark.exists() for mark in marks), f"generation {generation}")
