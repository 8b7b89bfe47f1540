"""The trace of a job: what the launcher, the instances and their calls leave in it."""

import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import BIN, Poprun, wait_for

PROGRAM = """
import glob, os, sys, time
import numpy as np
import popdist
from poprun.host.calls_in_progress import read_calls

popdist.init()
group = popdist.instance_group()
rank = popdist.getInstanceIndex()

late = int(sys.argv[1])

def wait_in_their_call(pids):
    others = popdist.getNumInstances() - 1
    return len(pids) == others and all(
        any(call.waits_since for call in read_calls(int(pid))) for pid in pids
    )

@popdist.trace("step")
def step(number):
    # Those that have made a file call next, and the late one waits until all wait.
    if late not in (-1, rank):
        open(f"step.{number}.{os.getpid()}", "w").close()
    elif rank == late:
        made = f"step.{number}."
        while not wait_in_their_call([f[len(made):] for f in glob.glob(made + "*")]):
            time.sleep(0.005)
        time.sleep(0.03)
    group.all_reduce(np.ones(1000, np.float32))

for number in range(10):
    step(number)
if len(sys.argv) > 2:
    with popdist.trace("last"):
        with open("new." + str(rank), "w") as file:
            print(os.getpid(), file=file)
        os.rename("new." + str(rank), "steps." + str(rank))
        if rank == 0:
            group.barrier()
        time.sleep(1000)
"""


def job(instances: int, *options: str) -> list[str]:
    number = str(instances)
    words = "--mpirun", "local", "--num-instances", number, "--num-replicas", number
    return [*words, *options]


def events_of(path: Path) -> list[Any]:
    events: list[Any] = json.loads(path.read_text())["traceEvents"]
    return events


def popctl(*words: str) -> subprocess.CompletedProcess[str]:
    command = [os.path.join(BIN, "popctl"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def test_a_straggler_is_seen_in_the_trace(poprun: Poprun) -> None:
    script = poprun.script("program.py", PROGRAM)
    file = poprun.directory / "trace.json"

    ran = poprun(*job(8, "--trace", str(file)), "python", script, "5")

    assert (ran.code, ran.stdout, ran.stderr) == (0, "", "")
    events = events_of(file)
    calls = [e for e in events if e.get("cat") == "call" and e["name"] == "all_reduce"]
    assert len(calls) == 80
    assert len({e["args"]["call"] for e in calls}) == 10
    assert {e["args"]["bytes"] for e in calls} == {4000}
    spans = [e["name"] for e in events if e.get("cat") == "span"]
    assert spans == ["step"] * 80
    lives = [e["args"]["end"] for e in events if e.get("cat") == "life"]
    assert lives == ["exit code 0"] * 8
    phases = {e["name"] for e in events if e.get("cat") == "phase"}
    assert {"mpirun", "run"} <= phases
    text = popctl("trace", str(file)).stdout
    late = (
        "100 % of that was for instance 5, which was the last to begin 10 of 10 calls."
    )
    assert late in text


def test_calls_of_a_killed_instance_are_in_the_trace(poprun: Poprun) -> None:
    script = poprun.script("program.py", PROGRAM)
    file = poprun.directory / "trace.json"
    steps = poprun.directory / "steps.0"

    def kill() -> None:
        wait_for(steps.exists, "the steps")
        os.kill(int(steps.read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    ran = poprun(*job(2, "--trace", str(file)), "python", script, "-1", "and wait")
    killer.join()

    assert ran.code == 137
    events = events_of(file)
    calls = [e for e in events if e.get("cat") == "call" and e["pid"] == 1]
    assert [e["name"] for e in calls][:10] == ["all_reduce"] * 10
    [last] = [e for e in events if e["name"] == "last" and e["pid"] == 1]
    assert last["args"] == {"unfinished": True}


def test_a_trace_that_cannot_be_written_is_refused_before_the_start(
    poprun: Poprun,
) -> None:
    script = poprun.script("program.py", "open('started', 'w')")

    ran = poprun(*job(1, "--trace", "none/t.json"), "python", script)

    assert ran.code == 2
    assert "--trace 'none/t.json' cannot be written: No such file" in ran.stderr
    assert not (poprun.directory / "started").exists()


def test_the_trace_of_a_poprun_that_was_killed_is_valid(poprun: Poprun) -> None:
    script = poprun.script("program.py", PROGRAM)
    file = poprun.directory / "trace.json"
    words = [*job(2, "--trace", str(file)), "python", script, "-1", "and wait"]
    started = poprun.start(*words)
    wait_for((poprun.directory / "steps.0").exists, "the steps")

    started.send_signal(signal.SIGKILL)
    started.wait()

    document = json.loads(file.read_text())
    assert document["otherData"]["complete"] == "no: poprun has not come to its end"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_is_interrupted_has_a_complete_trace(
    poprun: Poprun, number: int
) -> None:
    script = poprun.script("program.py", PROGRAM)
    file = poprun.directory / "trace.json"
    words = [*job(2, "--trace", str(file)), "python", script, "-1", "and wait"]
    started = poprun.start(*words)
    for rank in range(2):
        wait_for((poprun.directory / f"steps.{rank}").exists, "the steps")

    started.send_signal(number)
    started.wait()

    document = json.loads(file.read_text())
    assert document["otherData"]["complete"] == "yes"
    assert len([e for e in document["traceEvents"] if e.get("cat") == "call"]) >= 20


def test_calls_beyond_those_that_a_process_records_are_told(poprun: Poprun) -> None:
    script = poprun.script(
        "many.py",
        "import popdist\n"
        "popdist.init()\n"
        "group = popdist.instance_group()\n"
        "for _ in range((1 << 17) + 4):\n"
        "    group.barrier()\n",
    )
    file = poprun.directory / "trace.json"
    ran = poprun(*job(1, "--trace", str(file)), "python", script)

    assert (ran.code, ran.stderr) == (
        0,
        "poprun: warning: 5 calls are missing from the trace: each process "
        "records its first 131071, or fewer if the disk is full. 'popctl trace' "
        "names the processes.\n",
    )
    calls = [event for event in events_of(file) if event.get("cat") == "call"]
    assert len(calls) == 131071
    text = popctl("trace", str(file)).stdout
    assert (
        "\nSome calls are missing from the trace, because there was no room for "
        "them: the last 5 of instance 0." in text
    )
