"""kill -9 of each part of a job: everything ends, and what died is named."""

import random
import shlex
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from conftest import Poprun, wait_for
from deaths import Doomed, command_line, is_alive

pytestmark = pytest.mark.mpi

PROGRAMS = ["crowd", "ranks"]


def killed(victim: str) -> str:
    return (
        f"poprun: error: {victim} was killed, and the job with it. poprun did not do "
        "that. Find out what sends SIGKILL: perhaps the kernel, because memory ran "
        "out.\n"
    )


def supervisor_killed(rank: int) -> str:
    return killed(f"The supervisor of instance {rank}")


@pytest.mark.parametrize("program", PROGRAMS)
def test_poprun_killed(poprun: Poprun, every_mpirun: str, program: str) -> None:
    job = Doomed(poprun, every_mpirun, program, "--grace", "0.3")

    job.kill("poprun")

    assert job.end() == (-signal.SIGKILL, "")
    job.assert_nothing_is_left()


@pytest.mark.parametrize("program", PROGRAMS)
def test_mpirun_killed(poprun: Poprun, every_mpirun: str, program: str) -> None:
    job = Doomed(poprun, every_mpirun, program, "--grace", "0.3")

    job.kill("mpirun")

    assert job.end() == (
        125,
        "poprun: error: mpirun was killed by SIGKILL while instances were "
        "running, and they were stopped.\n",
    )
    job.assert_nothing_is_left()


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_shim_killed(poprun: Poprun, every_mpirun: str, program: str) -> None:
    job = Doomed(poprun, every_mpirun, program, "--grace", "0.3")

    job.kill("shim 1")

    code, words = job.end()
    assert code == 125
    assert words.endswith(supervisor_killed(1))
    job.assert_nothing_is_left()


def test_the_shim_of_a_daemons_parent_killed(poprun: Poprun, every_mpirun: str) -> None:
    job = Doomed(poprun, every_mpirun, "crowd", "--grace", "0.3")

    job.kill("shim 2")

    code, words = job.end()
    assert code == 125
    assert words.endswith(supervisor_killed(2))
    job.assert_nothing_is_left()


@pytest.mark.parametrize("program", PROGRAMS)
def test_hydras_proxy_killed(poprun: Poprun, hydra: str, program: str) -> None:
    job = Doomed(poprun, hydra, program, "--grace", "0.3")

    job.kill("proxy")

    code, words = job.end()
    assert code == 125
    assert words == killed("mpirun's daemon")
    job.assert_nothing_is_left()


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_killed_guard_is_replaced_and_the_job_goes_on(
    poprun: Poprun, every_mpirun: str, program: str
) -> None:
    job = Doomed(poprun, every_mpirun, program, "--grace", "0.3")

    job.kill_guard()
    job.kill("poprun", signal.SIGTERM)

    assert job.end() == (
        143,
        "poprun: warning: poprun's guard was killed; another takes its "
        "place.\npoprun: SIGTERM: stopping the instances; repeat to kill "
        "them.\npoprun: error: Stopped by SIGTERM.\n",
    )
    job.assert_nothing_is_left()


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_second_guard_ends_the_job_too(
    poprun: Poprun, every_mpirun: str, program: str
) -> None:
    job = Doomed(poprun, every_mpirun, program, "--grace", "0.3")

    job.kill_guard()
    job.kill("poprun")

    assert job.end()[0] == -signal.SIGKILL
    job.assert_nothing_is_left()


def test_a_stopped_guard_is_continued(poprun: Poprun, openmpi5: str) -> None:
    job = Doomed(poprun, openmpi5, "crowd", "--grace", "0.3")
    guard = job.find("guard")

    guard.send_signal(signal.SIGSTOP)
    wait_for(lambda: guard.status() != psutil.STATUS_STOPPED, "the guard to go on")
    guard.send_signal(signal.SIGSTOP)
    job.kill("poprun", signal.SIGTERM)

    assert job.end()[0] == 143
    job.assert_nothing_is_left()


def test_a_stopped_guard_ends_the_job_of_a_poprun_that_was_killed(
    poprun: Poprun, every_mpirun: str
) -> None:
    job = Doomed(poprun, every_mpirun, "crowd", "--grace", "0.3")
    guard = job.find("guard")
    launcher = job.find("poprun")
    # A stopped poprun does not continue its guard.
    launcher.send_signal(signal.SIGSTOP)
    wait_for(lambda: launcher.status() == psutil.STATUS_STOPPED, "poprun to stop")
    guard.send_signal(signal.SIGSTOP)
    wait_for(lambda: guard.status() == psutil.STATUS_STOPPED, "the guard to stop")

    job.kill("poprun")

    assert job.end()[0] == -signal.SIGKILL
    job.assert_nothing_is_left()


def first_guard(poprun: int) -> psutil.Process:
    """Return the guard as soon as poprun's posix_spawn has returned.

    Before its exec a child holds poprun in vfork: while that child is stopped, only
    SIGKILL has an effect on poprun.
    """

    def guards() -> list[psutil.Process]:
        children = psutil.Process(poprun).children()
        return [p for p in children if command_line(p.pid)[4:5] == ["guard"]]

    wait_for(lambda: bool(guards()), "the guard")
    return guards()[0]


# The job lives until the test has done to its guard what it will.
UNTIL_GO = ("sh", "-c", "until [ -e go ]; do sleep 0.02; done; echo done")


@pytest.mark.parametrize("moment", [0.0, 0.02, 0.05])
def test_a_guard_stopped_while_it_comes_up_is_continued(
    poprun: Poprun, moment: float
) -> None:
    process = poprun.start(
        *("--mpirun", "local", "--num-instances", "2", "--num-replicas", "2"),
        *UNTIL_GO,
    )
    guard = first_guard(process.pid)
    time.sleep(moment)
    guard.suspend()
    (poprun.directory / "go").touch()

    out, err = process.communicate(timeout=200)
    assert (process.returncode, out, err) == (0, b"done\ndone\n", b"")


@pytest.mark.parametrize("moment", [0.0, 0.02, 0.05])
def test_a_guard_stopped_while_it_comes_up_ends_with_poprun(
    poprun: Poprun, moment: float
) -> None:
    process = poprun.start("--mpirun", "local", "sleep", "600")
    guard = first_guard(process.pid)
    guard.suspend()
    time.sleep(moment)

    process.terminate()

    process.communicate(timeout=200)
    assert process.returncode == 143
    wait_for(lambda: not is_alive(guard), "the guard to end")


@pytest.mark.parametrize("moment", [0.0, 0.02, 0.05])
def test_a_guard_killed_while_the_job_starts_costs_nothing_but_a_warning(
    poprun: Poprun, every_mpirun: str, moment: float
) -> None:
    process = poprun.start(
        *("--mpirun", every_mpirun, "--num-instances", "2", "--num-replicas", "2"),
        *UNTIL_GO,
    )
    guard = first_guard(process.pid)
    time.sleep(moment)
    guard.kill()
    (poprun.directory / "go").touch()

    out, err = process.communicate(timeout=200)
    assert (process.returncode, out) == (0, b"done\ndone\n")
    assert err == (
        b"poprun: warning: poprun's guard was killed; another takes its place.\n"
    )


def directories_of(job: Doomed) -> list[Path]:
    identity = job.find("shim 0").cmdline()[5]
    return [Path(place, f"poprun-{identity}") for place in ("/dev/shm", "/tmp")]


def test_the_last_shim_removes_the_files_of_poprun_and_guard(
    poprun: Poprun, every_mpirun: str
) -> None:
    job = Doomed(poprun, every_mpirun, "crowd", "--grace", "0.3")
    guard = job.find("guard")
    directories = directories_of(job)

    job.kill("poprun", signal.SIGSTOP)
    guard.kill()
    job.kill("poprun")

    job.end()
    job.assert_nothing_is_left()
    wait_for(lambda: not any(map(Path.exists, directories)), "the last shim")


def test_the_kernel_kills_an_mpirun_that_hangs_when_no_supervisor_is_left(
    poprun: Poprun, every_mpirun: str
) -> None:
    real, path = shlex.quote(every_mpirun), poprun.directory / "mpirun"
    path.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec {real} --version\n'
        f'trap "" TERM\n{real} "$@"\nsleep 600\n'
    )
    path.chmod(0o755)
    job = Doomed(poprun, str(path), "crowd", "--grace", "0.3")
    guard, mpirun = job.find("guard"), job.find("mpirun")

    job.kill("poprun", signal.SIGSTOP)
    guard.kill()
    job.kill("poprun")

    job.end()
    job.assert_nothing_is_left()
    wait_for(lambda: not is_alive(mpirun), "mpirun to be killed")


# The first instances kill guard and poprun while mpirun starts the others, and leave a
# process with an empty environment in a session of its own.
KILLS_GUARD_AND_POPRUN = """
trap '' TERM
env -i setsid sh -c "trap '' TERM; sleep $1; :" &
parent() { sed 's/.*) //' /proc/$1/stat | cut -d ' ' -f 2; }
pid=$PPID
until tr '\\0' ' ' < /proc/$pid/cmdline | grep -q 'entry.py guard '; do
    pid=$(parent $pid) || exit
done
poprun=$(parent $pid)
# Another instance may have killed it: then it is not the guard's parent any more.
grep -q $1 /proc/$poprun/cmdline && kill -9 $poprun
kill -9 $pid
sleep $1
"""


def test_shims_that_start_after_the_end_of_poprun_and_guard_leave_others_their_time(
    poprun: Poprun, every_mpirun: str
) -> None:
    word = f"98765.{random.randrange(10**12)}"
    process = poprun.start(
        *("--mpirun", every_mpirun, "--num-instances", "12", "--num-replicas", "12"),
        *("sh", "-c", KILLS_GUARD_AND_POPRUN, "sh", word),
    )

    process.communicate(timeout=200)

    assert process.returncode == -signal.SIGKILL

    def lives() -> bool:
        return any(word in command_line(p.pid) for p in psutil.process_iter())

    wait_for(lambda: not lives(), "the last process to end")


@pytest.mark.parametrize("launcher", ["local", "openmpi5"])
@pytest.mark.parametrize("gap", [0.002, 0.03, 0.08])
def test_the_files_go_when_the_guard_is_killed_while_it_ends_the_job(
    poprun: Poprun, openmpi5: str, launcher: str, gap: float
) -> None:
    mpirun = openmpi5 if launcher == "openmpi5" else launcher
    for attempt in range(3):
        # Programs that end at once, so that the guard lives when their shims are done.
        process = poprun.start(
            *("--mpirun", mpirun, "--num-instances", "2", "--num-replicas", "2"),
            *("sh", "-c", f"touch ready.{attempt}.$$; exec sleep 600"),
        )
        ready = f"ready.{attempt}.*"
        wait_for(lambda r=ready: len(list(poprun.directory.glob(r))) == 2, "the job")
        below = psutil.Process(process.pid).children(recursive=True)
        guard = next(p for p in below if command_line(p.pid)[4:5] == ["guard"])
        shim = next(p for p in below if command_line(p.pid)[4:5] == ["shim"])
        identity = command_line(shim.pid)[5]

        process.kill()
        time.sleep(gap)
        with suppress(psutil.NoSuchProcess):  # it has done its work
            guard.kill()

        process.communicate(timeout=200)
        wait_for(lambda b=below: not any(map(is_alive, b)), "the last process to end")
        # A process that a shim has forked may outlive all of them for that.
        files = [Path(p, f"poprun-{identity}") for p in ("/dev/shm", "/tmp")]
        wait_for(lambda f=files: not any(map(Path.exists, f)), "no files")


def test_the_next_job_removes_the_files_of_one_that_was_killed_whole(
    poprun: Poprun, openmpi5: str
) -> None:
    job = Doomed(poprun, openmpi5, "ranks", "--grace", "0.3")
    launcher = psutil.Process(job.process.pid)
    below = launcher.children(recursive=True)
    directories = directories_of(job)
    # What is not poprun's own is left to the kernel.
    own = [p for p in (launcher, *below) if "poprun" in " ".join(command_line(p.pid))]
    for process in own:
        process.suspend()

    for process in own:
        process.kill()

    job.end()
    job.assert_nothing_is_left()
    assert poprun("--mpirun", openmpi5, "true").code == 0
    # The job of a test beside this one may have been the next one.
    wait_for(lambda: not any(map(Path.exists, directories)), "the next job")
