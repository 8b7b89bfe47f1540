"""popctl logs with a real job that writes files."""

import json
import subprocess

from conftest import BIN, Poprun, wait_for

POPCTL = str(BIN / "popctl")
PROGRAM = """
import os, sys, time
rank = os.environ["POPDIST_LOCAL_INSTANCE_INDEX"]
for line in range(3):
    print("line", line, "of", rank, flush=True)
sys.stderr.buffer.write(b"\\xff without an end")
sys.stderr.flush()
while not os.path.exists("stop"):
    time.sleep(0.05)
"""


def start(poprun: Poprun, *options: str) -> str:
    """Start a job, and return its id."""
    script = poprun.script("program.py", PROGRAM)
    process = poprun.start(
        *("--mpirun", "local", "--offline-mode=yes", "-n", "2", *options),
        *("python", script),
    )
    found: list[str] = []

    def runs() -> bool:
        listed = subprocess.run([POPCTL, "ps", "--json"], capture_output=True)
        views = [v for v in json.loads(listed.stdout) if v["pid"] == process.pid]
        found[:] = [v["id"] for v in views]
        return bool(views) and views[0].get("num_running") == 2

    wait_for(runs, "the instances")
    return found[0]


def logs(*words: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run([POPCTL, "logs", *words], capture_output=True)


def end(poprun: Poprun) -> None:
    (poprun.directory / "stop").touch()
    assert poprun.started[0].wait(timeout=200) == 0


def test_the_files_of_all_instances_or_of_one_are_written(poprun: Poprun) -> None:
    job = start(poprun, "--output-filename", "log")
    wait_for(lambda: logs(job).stdout.count(b"\xff") == 2, "the output")

    every, one, last = logs(job), logs(job, "1"), logs(job, "1", "-n", "1")
    end(poprun)

    assert (every.returncode, every.stderr) == (0, b"")
    heads = [line for line in every.stdout.splitlines() if line.startswith(b"==>")]
    assert len(heads) == 4
    out, error = heads[2:]
    assert str(poprun.directory).encode() in out
    assert one.stdout == b"%s\nline 0 of 1\nline 1 of 1\nline 2 of 1\n%s\n%s\n" % (
        *(out, error),
        b"\xff without an end",
    )
    assert last.stdout == b"%s\nline 2 of 1\n%s\n%s\n" % (
        *(out, error),
        b"\xff without an end",
    )


def test_a_job_without_files_and_an_instance_that_there_is_not_are_refused(
    poprun: Poprun,
) -> None:
    job = start(poprun)
    refused = logs(job)
    end(poprun)

    assert refused.returncode == 1
    assert refused.stderr == (
        b"popctl: error: Job %s does not write its output to files: that needs "
        b"--log-dir DIRECTORY. 'popctl attach' shows what an instance writes from "
        b"now on.\n" % job[:8].encode()
    )


def test_files_that_cannot_be_found_are_refused(poprun: Poprun) -> None:
    job = start(poprun, "--log-dir", "log")
    (poprun.directory / "log").rename(poprun.directory / "other")
    refused = logs(job)
    end(poprun)

    assert (refused.returncode, refused.stdout) == (1, b"")
    assert b"which popctl cannot find: the directory was" in refused.stderr
