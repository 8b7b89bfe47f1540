"""Elastic jobs whose instances go on in their processes when others are lost.

The instances speak poprun's messages themselves: see tests/elastic_program.py.
"""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from beds.bed import Bed
from conftest import ROOT, Poprun, wait_for

PROGRAM = str(ROOT / "tests" / "elastic_program.py")


class ElasticJob:
    """A job of poprun on this machine, with the folder of its instances."""

    def __init__(self, poprun: Poprun, size: int, *options: str) -> None:
        self.poprun = poprun
        self.folder = poprun.directory / "state"
        self.folder.mkdir()
        self.size = size
        self.errors = poprun.directory / "errors"
        with self.errors.open("wb") as errors:
            self.process = poprun.start(
                *("--mpirun", "local", "-n", str(size), "--result", "result"),
                *("--events", "events", *options, "python", PROGRAM, str(self.folder)),
                stderr=errors,
            )
        wait_for(lambda: self.steps > 0, "the first step")

    @property
    def steps(self) -> int:
        return steps_of(self.folder)

    def pid(self, index: int) -> int:
        return int((self.folder / f"pid-{index}").read_text())

    def kill(self, *indices: int) -> None:
        """Kill instances, and wait until the others have made steps without them."""
        for index in indices:
            os.kill(self.pid(index), signal.SIGKILL)

    def wait_for_text(self, text: str) -> None:
        wait_for(lambda: text in self.text, text)

    def wait_for_steps(self) -> None:
        """Wait until the members have made more steps."""
        before = self.steps
        wait_for(lambda: self.steps > before + 1, "more steps")

    @property
    def text(self) -> str:
        return self.errors.read_text()

    def finish(self) -> tuple[int, list[str]]:
        """Let it end; return the exit code and what the instances say, by index."""
        (self.folder / "stop").touch()
        out, _ = self.process.communicate(timeout=200)
        return self.process.returncode, sorted(out.decode().splitlines())

    @property
    def result(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(
            (self.poprun.directory / "result").read_text()
        )
        return value


def steps_of(folder: Path) -> int:
    counter = folder / "steps"
    return int(counter.read_text()) if counter.exists() else 0


def test_the_others_go_on_when_instances_are_killed(poprun: Poprun) -> None:
    job = ElasticJob(poprun, 4, "--min-instances", "2", "--summary")
    job.kill(0)
    job.wait_for_text("3 instances go on as generation 1 after")
    job.wait_for_steps()
    job.kill(2)
    job.wait_for_text("2 instances go on as generation 2 after")
    code, said = job.finish()

    assert (code, said) == (
        0,
        ["index 1 generation 2: 0 2 2 2", "index 3 generation 2: 1 2 2 2"],
    )
    assert "poprun: Instance 0 was killed by SIGKILL; 3 instances" in job.text
    assert "error" not in job.text
    [attempt] = job.result["attempts"]
    assert attempt["outcome"] == "succeeded"
    assert [i["state"] for i in attempt["instances"]] == [
        *("lost", "succeeded", "lost", "succeeded"),
    ]
    changes = attempt["changes"]
    assert [(c["generation"], c["members"], c["lost"]) for c in changes] == [
        (1, [1, 2, 3], [0]),
        (2, [1, 3], [2]),
    ]
    assert changes[0]["why"] == "Instance 0 was killed by SIGKILL."


def test_two_at_once_are_one_change_or_two(poprun: Poprun) -> None:
    job = ElasticJob(poprun, 5, "--min-instances", "3")
    job.kill(1, 4)
    job.wait_for_text("3 instances go on as generation")
    code, said = job.finish()

    assert code == 0
    assert [line.partition(":")[2] for line in said] == [
        " 0 3 3 3",
        " 1 3 3 3",
        " 2 3 3 3",
    ]


def test_an_instance_is_started_again_beside_the_others(poprun: Poprun) -> None:
    job = ElasticJob(poprun, 3, "--min-instances", "2", "--max-restarts", "1")
    first = job.pid(1)
    job.kill(1)
    job.wait_for_text("Instance 1 was started again; 3 instances go on as generation 2")
    job.wait_for_steps()
    assert job.pid(1) != first
    # There is no restart left.
    job.kill(1)
    job.wait_for_text("2 instances go on as generation 3")
    code, said = job.finish()

    assert (code, said) == (
        0,
        ["index 0 generation 3: 0 2 2 2", "index 2 generation 3: 1 2 2 2"],
    )
    assert job.result["attempts"][0]["changes"][1]["added"] == [1]


def test_an_instance_whose_supervisor_was_killed_is_started_again(
    poprun: Poprun,
) -> None:
    job = ElasticJob(poprun, 2, "--min-instances", "1", "--max-restarts", "1")
    status = Path(f"/proc/{job.pid(1)}/stat").read_text()
    os.kill(int(status.rpartition(") ")[2].split()[1]), signal.SIGKILL)
    job.wait_for_text("The supervisor of instance 1 was killed; 1 instance goes on")
    job.wait_for_text("Instance 1 was started again; 2 instances go on")
    job.wait_for_steps()
    code, said = job.finish()

    assert (code, len(said)) == (0, 2), job.text


JOINED = """
import os, signal, time
from pathlib import Path
import numpy as np
import popdist
from popdist import elastic
from popdist.generations import GENERATIONS
index = int(os.environ["RANK"])
joins = "POPDIST_ELASTIC_JOINS" in os.environ
gone_on = Path("gone-on")

@elastic.run
def work(state):
    group = popdist.instance_group()
    if elastic.generation():
        gone_on.touch()
    while elastic.generation() < 2:
        group.all_reduce(np.ones(1))
        if index == 0 and not joins:
            os.kill(os.getpid(), signal.SIGKILL)
        state.commit()

# The generation after the loss has one member.
while joins and not gone_on.exists():
    time.sleep(0.01)
work(elastic.State())
print(index, "has joined", GENERATIONS.joined)
"""


def test_an_instance_knows_that_it_has_joined_a_running_job(poprun: Poprun) -> None:
    ran = poprun(
        *("--mpirun", "local", "-n", "2", "--min-instances", "1"),
        *("--max-restarts", "1", "python", "-c", JOINED),
    )

    assert ran.code == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == ["0 has joined 2", "1 has joined 0"]


LATE = """
import os, signal, sys, time
from pathlib import Path
from popdist import elastic
folder = Path(sys.argv[1])
rank = int(os.environ["RANK"])
if os.environ.get("POPDIST_ELASTIC_JOINS"):
    (folder / "starts").touch()
    if sys.argv[2] == "starts":
        time.sleep(1000)
    while not (folder / "reformed").exists():
        time.sleep(0.01)
    elastic.State(step=0).sync()
    sys.exit("has joined members that have ended")
assert not elastic.refusal()
(folder / f"able-{rank}").touch()
while len(list(folder.glob("able-*"))) < 3:
    time.sleep(0.01)
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
while not (folder / "starts").exists():
    time.sleep(0.01)
if sys.argv[2] == "asks":
    elastic.reform()
    (folder / "reformed").touch()
    while not elastic.members_changed():
        time.sleep(0.01)
print(rank, "has ended")
"""


@pytest.mark.parametrize("when", ["starts", "asks"])
def test_an_instance_that_is_started_again_too_late_is_no_failure(
    poprun: Poprun, when: str
) -> None:
    ran = poprun(
        *("--mpirun", "local", "-n", "3", "--min-instances", "2", "--summary"),
        *("--max-restarts", "1", "python", "-c", LATE, poprun.directory, when),
    )

    assert (ran.code, sorted(ran.stdout.splitlines())) == (
        0,
        ["0 has ended", "2 has ended"],
    )
    assert "Error" not in ran.stderr
    assert " localhost  lost " in ran.stderr


def test_a_job_of_which_too_few_are_left_ends_with_the_cause(poprun: Poprun) -> None:
    job = ElasticJob(poprun, 3, "--min-instances", "2")
    job.kill(0)
    job.wait_for_text("2 instances go on as generation 1")
    job.wait_for_steps()
    job.kill(1)
    job.process.communicate(timeout=200)

    assert job.process.returncode == 137
    assert "poprun: error: Instance 1 on localhost was killed by SIGKILL." in job.text
    result = job.result
    assert (result["outcome"], result["failed_instance"]) == ("instance_failed", 1)


def test_a_restart_uses_what_the_attempt_has_left(poprun: Poprun) -> None:
    job = ElasticJob(poprun, 2, "--min-instances", "1", "--max-restarts", "2")
    job.kill(0)
    job.wait_for_text("Instance 0 was started again; 2 instances go on")
    job.wait_for_steps()
    # Both at once for poprun, or the second restart would be one of instance 0 alone.
    job.process.send_signal(signal.SIGSTOP)
    job.kill(0, 1)
    job.process.send_signal(signal.SIGCONT)
    job.wait_for_text("restart 2 of at most 2")
    wait_for(lambda: "instance_started" in last_events(poprun), "the next attempt")
    code, said = job.finish()

    assert code == 0
    assert len(said) == 2


def last_events(poprun: Poprun) -> list[str]:
    """Return the names of the events of the second attempt."""
    lines = (poprun.directory / "events").read_text().splitlines()
    values = [json.loads(line) for line in lines if line.endswith("}")]
    return [value["event"] for value in values if value["attempt"] == 1]


def test_a_job_that_may_not_lose_an_instance_stops_as_ever(poprun: Poprun) -> None:
    program = 'import sys; sys.argv[1:] = ["."]; exec(open("{}").read())'
    ran = poprun(
        *("--mpirun", "local", "-n", "2", "python", "-c", program.format(PROGRAM))
    )

    assert ran.code == 1
    sentence = (
        "because it was started without --min-instances. Start it with --mpirun local "
        "--min-instances M.\n"
    )
    assert sentence in ran.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_poprun_ends_while_members_wait(
    poprun: Poprun, number: int
) -> None:
    job = ElasticJob(poprun, 3, "--min-instances", "2", "--grace", "1")
    # It lives and does not re-form, so the others wait.
    os.kill(job.pid(2), signal.SIGSTOP)
    job.kill(0)
    wait_for(lambda: '"instance_ended"' in events_of(poprun), "the end of instance 0")
    time.sleep(0.3)
    job.process.send_signal(number)
    job.process.communicate(timeout=200)

    # The fixture looks for processes and files that are left.
    assert job.process.returncode == (-9 if number == signal.SIGKILL else 128 + number)


def events_of(poprun: Poprun) -> str:
    return (poprun.directory / "events").read_text()


@pytest.mark.parametrize("seed", range(3))
def test_kills_at_random_moments_leave_a_job_that_goes_on(
    poprun: Poprun, seed: int
) -> None:
    dice = random.Random(seed)
    job = ElasticJob(poprun, 4, "--min-instances", "1", "--max-restarts", "40")
    for _ in range(8):
        for index in dice.sample(range(4), dice.choice((1, 1, 2))):
            # It may be ending, or starting again.
            with_pid = job.folder / f"pid-{index}"
            if with_pid.exists() and "elastic_program" in command(job.pid(index)):
                with suppress(ProcessLookupError):
                    os.kill(job.pid(index), signal.SIGKILL)
        time.sleep(dice.uniform(0, 0.6))
        job.wait_for_steps()
    code, said = job.finish()

    assert code == 0, job.text
    assert said


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


# --- Several hosts.


def start_on_hosts(bed: Bed, *options: str) -> "subprocess.Popen[str]":
    folder = bed.front.path("/root/state")
    folder.mkdir()
    job: subprocess.Popen[str] = bed.front.start(
        *("poprun", "--mpirun", "local", "--host", "h0,h1,h2", "-n", "6"),
        *("--min-instances", "2", "--result", "/root/result", *options),
        *("python3", PROGRAM, "/root/state"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: steps_of(folder) > 0 or job.poll() is not None, "the first step")
    return job


def wait_for_members(bed: Bed, generation: int) -> None:
    """Wait until members of a generation have made a step."""
    folder = bed.front.path("/root/state")
    wait_for(
        lambda: any(True for _ in folder.glob(f"0-{generation}-*")), f"{generation}"
    )
    before = steps_of(folder)
    wait_for(lambda: steps_of(folder) > before, "a step of that generation")


def finish_on_hosts(bed: Bed, job: "subprocess.Popen[str]") -> tuple[list[str], str]:
    bed.front.path("/root/state/stop").touch()
    out, err = job.communicate(timeout=200)
    assert job.returncode == 0, err
    return sorted(out.splitlines()), err


@pytest.mark.parametrize("loss", ["kill", "power_off", "cut"])
def test_the_others_go_on_when_a_host_is_lost(
    make_bed: Callable[..., Bed], loss: str
) -> None:
    bed = make_bed(hosts=3, shared_home=True)
    job = start_on_hosts(bed)
    if loss == "cut":
        bed["h1"].link.cut()
    else:
        getattr(bed["h1"], loss)()
    wait_for_members(bed, 1)
    said, err = finish_on_hosts(bed, job)

    assert said == [
        "index 0 generation 1: 0 4 4 2",
        "index 1 generation 1: 1 4 4 2",
        "index 4 generation 1: 2 4 4 2",
        "index 5 generation 1: 3 4 4 2",
    ]
    assert "4 instances go on as generation 1 after" in err
    others = [bed["h0"], bed["h2"]]
    # The guards end once they have cleaned up, a moment after poprun.
    wait_for(lambda: not any(host.processes() for host in others), "the end of all")
    if loss == "cut":
        # Its instances end by themselves.
        alive = lambda: bed["h1"].run("pgrep", "-f", "elastic_program").stdout  # noqa: E731
        wait_for(lambda: not alive(), "the end of the instances on h1")


def test_an_instance_on_another_host_is_started_again(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(hosts=3, shared_home=True)
    job = start_on_hosts(bed, "--max-restarts", "2")
    pid = bed.front.path("/root/state/pid-2").read_text()
    bed["h1"].run("kill", "-KILL", pid)
    wait_for_members(bed, 2)
    said, err = finish_on_hosts(bed, job)

    assert "Instance 2 (h1) was killed by SIGKILL; 5 instances go on" in err
    assert "Instance 2 was started again; 6 instances go on as generation 2" in err
    assert [line.partition(":")[2] for line in said] == [
        f" {rank} 6 6 2" for rank in range(6)
    ]
    bed.assert_nothing_is_left()


def test_an_instance_on_another_host_gets_another_supervisor(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(hosts=3, shared_home=True)
    job = start_on_hosts(bed, "--max-restarts", "2")
    bed["h1"].output("pkill", "-KILL", "-f", "^[^ ]*python[^ ]* .*entry.py shim .* 2$")
    wait_for_members(bed, 2)
    said, err = finish_on_hosts(bed, job)

    assert "The supervisor of instance 2 (h1) was killed; 5 instances go on" in err
    assert "Instance 2 was started again; 6 instances go on as generation 2" in err
    assert [line.partition(":")[2] for line in said] == [
        f" {rank} 6 6 2" for rank in range(6)
    ]
    bed.assert_nothing_is_left()
