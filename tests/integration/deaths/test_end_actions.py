"""A job that has made something outside this machine's files: it is always undone."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from conftest import ROOT, Poprun, wait_for
from deaths import command_line

# poprun with one more resource: a file is made, and a command counts how often it is
# undone and fails if it is told to.
POPRUN = """
import os, sys
from poprun import cli
from poprun.helpers.end_actions import run_command
from poprun.job import job_description
from poprun.job.values import Resource
from dataclasses import replace

here = os.getcwd()
script = f"echo undone >> {here}/undone; rm -f {here}/lease; test ! -e {here}/fail"
action = run_command(
    purpose="release the lease",
    argv=[b"/bin/sh", b"-c", script.encode()],
    environment=[b"PATH=/usr/bin:/bin"],
    timeout_s=60,
)
make_job = job_description.make_job

def with_lease(*arguments, **settings):
    job = make_job(*arguments, **settings)
    make = lambda: open("lease", "x").close()
    lease = Resource(make=make, end_action=action)
    return replace(job, job_resources=[*job.job_resources, lease])

job_description.make_job = with_lease
sys.exit(cli.main())
"""
FAILURE = "Could not release the lease: /bin/sh exited with 1"


class Leasing:
    """A job with a lease, in a directory of its own."""

    def __init__(self, poprun: Poprun, program: str) -> None:
        self.directory = poprun.directory
        script = self.directory / "poprun_with_lease.py"
        script.write_text(POPRUN)
        self.process = subprocess.Popen(
            [
                *(sys.executable, str(script), "--mpirun", "local", "--grace", "0.3"),
                *("--num-instances", "2", "--num-replicas", "2", "sh", "-c", program),
            ],
            cwd=self.directory,
            env={**poprun.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        poprun.started.append(self.process)

    def wait_for_instances(self) -> list[psutil.Process]:
        wait_for(lambda: len(list(self.directory.glob("up.*"))) == 2, "the job")
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self) -> str:
        """Wait until it has ended, and its guard too; return its stderr."""
        return self.process.communicate(timeout=200)[1].decode()

    @property
    def is_undone(self) -> bool:
        return not (self.directory / "lease").exists()

    @property
    def times_undone(self) -> int:
        path = self.directory / "undone"
        return len(path.read_text().split()) if path.exists() else 0


SLEEPS = "test -e lease && : > up.$$ && exec sleep 600"


@pytest.fixture
def failing(poprun: Poprun) -> Path:
    path = poprun.directory / "fail"
    path.touch()
    return path


@pytest.mark.parametrize("code", [0, 3])
def test_a_job_that_ends_by_itself_is_undone(poprun: Poprun, code: int) -> None:
    job = Leasing(poprun, f"test -e lease && exit {code}")

    assert FAILURE not in job.end()

    assert job.process.returncode == code
    assert (job.is_undone, job.times_undone) == (True, 1)


def test_a_failure_to_undo_is_a_warning_of_poprun(
    poprun: Poprun, failing: Path
) -> None:
    job = Leasing(poprun, "true")

    assert job.end() == f"poprun: warning: {FAILURE}.\n"

    assert job.process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_job_whose_poprun_gets_a_signal_is_undone(
    poprun: Poprun, number: signal.Signals
) -> None:
    job = Leasing(poprun, SLEEPS)
    job.wait_for_instances()

    job.process.send_signal(number)

    job.end()
    wait_for(lambda: job.is_undone, "the guard")
    assert job.times_undone == 1


def test_a_failure_without_poprun_is_written_to_its_stderr(
    poprun: Poprun, failing: Path
) -> None:
    job = Leasing(poprun, SLEEPS)
    job.wait_for_instances()

    job.process.kill()

    assert job.end() == f"poprun: {FAILURE}.\n"


def test_the_last_shim_undoes_the_job_when_poprun_and_guard_are_killed(
    poprun: Poprun,
) -> None:
    job = Leasing(poprun, SLEEPS)
    below = job.wait_for_instances()
    guard = next(p for p in below if command_line(p.pid)[4:5] == ["guard"])

    job.process.send_signal(signal.SIGSTOP)
    guard.kill()
    job.process.kill()

    job.end()
    wait_for(lambda: job.is_undone, "the last shim")
    assert job.times_undone == 1


def test_another_guard_undoes_the_job_of_one_that_was_killed(poprun: Poprun) -> None:
    job = Leasing(poprun, SLEEPS)
    below = job.wait_for_instances()
    guard = next(p for p in below if command_line(p.pid)[4:5] == ["guard"])
    guard.kill()

    def is_replaced() -> bool:
        children = psutil.Process(job.process.pid).children()
        found = [p for p in children if command_line(p.pid)[4:5] == ["guard"]]
        return bool(found) and found[0].pid != guard.pid

    wait_for(is_replaced, "another guard")
    job.process.kill()

    job.end()
    wait_for(lambda: job.is_undone, "the guard")


def test_the_next_job_undoes_one_that_was_killed_whole(poprun: Poprun) -> None:
    job = Leasing(poprun, SLEEPS)
    below = job.wait_for_instances()
    own = [psutil.Process(job.process.pid), *below]
    own = [p for p in own if "poprun" in " ".join(command_line(p.pid))]
    for process in own:
        process.suspend()
    for process in own:
        process.kill()
    job.end()

    assert poprun("--mpirun", "local", "true").code == 0

    # The job of a test beside this one may have been the next one.
    wait_for(lambda: job.is_undone, "the next job")
    assert job.times_undone == 1


def test_what_could_not_be_made_is_undone_too(poprun: Poprun) -> None:
    (poprun.directory / "lease").touch()  # another job's, says the resource
    job = Leasing(poprun, "true")

    assert "FileExistsError" in job.end()

    # The command that undoes it removes the lease last.
    wait_for(lambda: job.is_undone, "the guard")
    assert job.times_undone == 1
