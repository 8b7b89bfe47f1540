"""What the kernel refuses or takes away, told in words."""

import contextlib
import json
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from conftest import POPRUN, Poprun, wait_for

MIB = 1 << 20
CGROUPS = Path("/sys/fs/cgroup")
# What jobs need to be told apart from others, and to take none of the user's IPUs.
OF_THE_TEST = ("POPRUN_TEST", "POPRUN_VIPU_INVENTORY")


def job(instances: int, mpirun: str = "local") -> list[str]:
    number = str(instances)
    return ["--mpirun", mpirun, "--num-instances", number, "--num-replicas", number]


@contextlib.contextmanager
def cgroup(controller: str, settings: Mapping[str, str]) -> Iterator[Path]:
    """Make a group of processes with limits of its own, which root can.

    Args:
        settings: For both versions of cgroups; a file that is not there is the other's.
    """
    version_1 = (CGROUPS / controller).is_dir()
    top = CGROUPS / controller if version_1 else CGROUPS
    wanted = controller if version_1 else ""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    fields = [line.split(":", 2) for line in lines]
    [own] = [path for _, controllers, path in fields if controllers == wanted]
    # A container may see its own group as the uppermost.
    parent = top / own.lstrip("/")
    group = (parent if parent.is_dir() else top) / f"poprun-{random.getrandbits(64)}"
    group.mkdir()
    try:
        for name, value in settings.items():
            if (group / name).exists():
                (group / name).write_text(value)
        yield group
    finally:
        limit = time.monotonic() + 200
        while (group / "cgroup.procs").read_text() and time.monotonic() < limit:
            time.sleep(0.01)
        group.rmdir()


def run_in(
    group: Path, poprun: Poprun, *words: str
) -> "subprocess.CompletedProcess[bytes]":
    move = 'echo $$ > "$0" && exec "$@"'
    return subprocess.run(
        ["sh", "-c", move, str(group / "cgroup.procs"), POPRUN, *words],
        cwd=poprun.directory,
        env={**poprun.environ, "SLURMD_NODENAME": "localhost"},
        capture_output=True,
        timeout=200,
    )


@pytest.mark.mpi
def test_an_instance_that_was_killed_for_want_of_memory_is_named_with_the_limit(
    poprun: Poprun, every_mpirun: str
) -> None:
    poprun.script(
        "greedy.py",
        "import os, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    much = b'x' * (600 << 20)\n"
        "time.sleep(600)\n",
    )
    limit = str(150 * MIB)
    with cgroup(
        "memory", {"memory.limit_in_bytes": limit, "memory.max": limit}
    ) as group:
        ran = run_in(group, poprun, *job(2, every_mpirun), "python", "greedy.py")

    assert (ran.returncode, ran.stdout) == (137, b"")
    assert re.fullmatch(
        r"poprun: error: Instance 1 on localhost was killed by SIGKILL: out of memory "
        r"\(the limit is 150 MiB, it had used [\d.]+ MiB\)\.\n",
        ran.stderr.decode(),
    )


def test_a_child_of_a_shell_that_was_killed_for_want_of_memory_is_told_too(
    poprun: Poprun,
) -> None:
    poprun.script("greedy.py", "much = b'x' * (600 << 20)\n")
    limit = str(150 * MIB)
    with cgroup(
        "memory", {"memory.limit_in_bytes": limit, "memory.max": limit}
    ) as group:
        ran = run_in(group, poprun, *job(1), "sh", "-c", "python greedy.py; exit $?")

    assert (ran.returncode, ran.stdout) == (137, b"")
    assert re.search(
        r"poprun: error: Instance 0 on localhost exited with code 137: out of memory "
        r"\(the limit is 150 MiB, it had used [\d.]+ MiB\)\.\n$",
        ran.stderr.decode(),
    )


def test_an_instance_that_somebody_killed_was_not_short_of_memory(
    poprun: Poprun,
) -> None:
    limit = str(150 * MIB)
    with cgroup(
        "memory", {"memory.limit_in_bytes": limit, "memory.max": limit}
    ) as group:
        ran = run_in(group, poprun, *job(2), "sh", "-c", "test $RANK = 0 || kill -9 $$")

    assert ran.returncode == 137
    assert ran.stderr.splitlines()[-1].startswith(
        b"poprun: error: Instance 1 on localhost was killed by SIGKILL. poprun did not "
        b"send it, and the kernel has not killed any process because memory ran out."
    )


def test_instances_stay_in_the_cpuset_of_their_caller(poprun: Poprun) -> None:
    poprun.script(
        "where.py",
        "import os\n"
        "with open('cpus.' + os.environ['RANK'], 'w') as file:\n"
        "    print(sorted(os.sched_getaffinity(0)), file=file)\n"
        "    print(os.environ['OMP_NUM_THREADS'], file=file)\n",
    )
    cpus = poprun("sh", "-c", "nproc --all").stdout
    last = str(int(cpus) - 1)
    poprun.environ.pop("OMP_NUM_THREADS", None)
    with cgroup("cpuset", {"cpuset.mems": "0", "cpuset.cpus": last}) as group:
        ran = run_in(group, poprun, *job(3), "python", "where.py")

    assert (ran.returncode, ran.stderr) == (0, b"")
    for rank in range(3):
        told = (poprun.directory / f"cpus.{rank}").read_text()
        assert told == f"[{last}]\n1\n"


def test_a_value_that_exec_would_not_accept_is_refused_before_the_start(
    poprun: Poprun,
) -> None:
    value = "x" * 131_072
    (poprun.directory / "job.yaml").write_text(
        f"mpi-global-args: {json.dumps('-x LONG=' + shlex.quote(value))}\n"
    )
    ran = poprun(*job(2), "--import-config", "job.yaml", "touch", "started")

    assert (ran.code, ran.stderr) == (
        2,
        "poprun: error: The variable LONG is 131077 bytes long with its "
        "name, but the kernel accepts at most 131071. Pass it in a file.\n",
    )
    assert not (poprun.directory / "started").exists()


def test_a_small_stack_leaves_room_enough_for_words(poprun: Poprun) -> None:
    small = 'ulimit -s 256 && exec "$@"'
    ran = subprocess.run(
        ["sh", "-c", small, "sh", POPRUN, *job(1), "echo", "x" * 60_000, "y" * 40_000],
        cwd=poprun.directory,
        env={name: poprun.environ[name] for name in (*OF_THE_TEST, "PATH")},
        capture_output=True,
        timeout=200,
    )

    assert (ran.returncode, ran.stderr) == (0, b"")
    assert len(ran.stdout) == 100_002


@pytest.mark.parametrize(
    ("processes", "told"),
    [
        pytest.param(
            1, "poprun's guard could not be started: posix_spawn(): ", id="guard"
        ),
        pytest.param(2, "mpirun could not be started: fork(): ", id="mpirun"),
        pytest.param(3, "mpirun ended with exit code 1 before it had ", id="shim"),
        pytest.param(
            4,
            "Instance 0 could not be started: fork() failed in its supervisor: ",
            id="instance",
        ),
    ],
)
def test_a_limit_of_processes_is_told_with_the_part_that_could_not_start(
    poprun: Poprun, processes: int, told: str
) -> None:
    with cgroup("pids", {"pids.max": str(processes)}) as group:
        ran = run_in(group, poprun, "--mpirun", "local", "true")

    err = ran.stderr.decode()
    assert (ran.returncode, ran.stdout) == (125, b"")
    assert f"poprun: error: {told}" in err
    assert "Resource temporarily unavailable" in err
    assert "Traceback" not in err
    if "before it had" in told:
        assert "    The local launcher cannot start " in err
    else:
        assert "see 'ulimit -u' and pids.max" in err


def run_with_open_files(
    poprun: Poprun, limits: str, *words: str
) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        ["sh", "-c", f'{limits} && exec "$@"', "sh", POPRUN, *words],
        cwd=poprun.directory,
        env=poprun.environ,
        capture_output=True,
        timeout=200,
    )


def test_more_instances_than_open_files_are_refused_before_the_start(
    poprun: Poprun,
) -> None:
    words = ["--quiet", *job(400), "touch", "started"]
    ran = run_with_open_files(poprun, "ulimit -n 1024", *words)

    assert (ran.returncode, ran.stdout) == (125, b"")
    assert re.fullmatch(
        r"poprun: error: poprun needs 16\d\d open files for 400 instances, 4 for each, "
        r"but the hard limit is 1024\. Raise it with 'ulimit -Hn', or start fewer "
        r"instances\.\n",
        ran.stderr.decode(),
    )
    assert not (poprun.directory / "started").exists()


@pytest.mark.mpi
def test_poprun_and_mpirun_have_more_open_files_and_programs_the_callers(
    poprun: Poprun, every_mpirun: str
) -> None:
    limits = "ulimit -Sn 70 && ulimit -Hn 2048"
    words = ["-q", *job(30, every_mpirun), "sh", "-c", "ulimit -Sn; ulimit -Hn"]
    ran = run_with_open_files(poprun, limits, *words)

    assert (ran.returncode, ran.stderr) == (0, b"")
    assert sorted(ran.stdout.split()) == [b"2048"] * 30 + [b"70"] * 30


@pytest.mark.mpi
def test_with_any_umask_the_job_can_use_its_files_and_programs_have_the_callers(
    poprun: Poprun, every_mpirun: str
) -> None:
    # Root may use files without any permission, so this looks at the permissions.
    script = """
        directory=$(dirname $POPDIST_ENDED_INSTANCES)
        stat -c %a $directory $directory/supervisors
        find $directory -type d -not -perm -700
        umask
    """
    ran = subprocess.run(
        [
            "sh",
            "-c",
            'umask 777 && exec "$@"',
            "sh",
            POPRUN,
            *job(1, every_mpirun),
            "sh",
            "-c",
            script,
        ],
        cwd=poprun.directory,
        env=poprun.environ,
        capture_output=True,
        timeout=200,
    )

    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout.split() == [b"700", b"600", b"0777"]


@pytest.mark.parametrize(
    ("option", "seconds"),
    [
        *(("--timeout", seconds) for seconds in ("2147484", "4294968", "999999999")),
        ("--start-timeout", "2147484"),
        ("--grace", "4294968"),
    ],
)
def test_a_time_may_be_longer_than_poll_can_count(
    poprun: Poprun, option: str, seconds: str
) -> None:
    ran = poprun(*job(1), option, seconds, "sh", "-c", "sleep 0.1; exit 3")

    assert (ran.code, ran.out) == (3, b"")
    assert "Traceback" not in ran.stderr


def test_variables_without_a_name_or_a_value_are_no_obstacle(poprun: Poprun) -> None:
    # No program can read one, and exec by Python refuses them.
    script = f"""
import ctypes
libc = ctypes.CDLL(None)
argv = [{POPRUN!r}, "--mpirun", "local", "env"]
env = [{", ".join(repr(f"{n}={poprun.environ[n]}") for n in OF_THE_TEST)}]
env += ["PATH=/usr/bin:/bin", "=nameless", "valueless", "A=1", "="]
array = lambda words: (ctypes.c_char_p * (len(words) + 1))(*map(str.encode, words))
libc.execve(argv[0].encode(), array(argv), array(env))
"""
    ran = subprocess.run(
        [sys.executable, "-c", script],
        cwd=poprun.directory,
        capture_output=True,
        timeout=200,
    )

    assert (ran.returncode, ran.stderr) == (0, b"")
    told = ran.stdout.splitlines()
    assert b"A=1" in told
    assert not [line for line in told if b"nameless" in line or line[:1] == b"="]


def run_with_mounts(
    poprun: Poprun, mounts: str, *words: str, **environ: str
) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{mounts} && exec "$@"', "sh", POPRUN, *words],
        cwd=poprun.directory,
        env={**poprun.environ, **environ},
        capture_output=True,
        timeout=200,
    )


@pytest.mark.parametrize(
    "mounts",
    [
        pytest.param("mount -t tmpfs -o nr_inodes=1 none /dev/shm", id="no-inodes"),
        pytest.param("mount -t tmpfs -o ro none /dev/shm", id="read-only"),
    ],
)
def test_without_room_in_shared_memory_a_job_uses_another_place(
    poprun: Poprun, mounts: str
) -> None:
    ran = run_with_mounts(poprun, mounts, "--mpirun", "local", "true")

    assert (ran.returncode, ran.stderr) == (0, b"")


def test_with_a_full_disk_below_tmpdir_a_job_uses_tmp(poprun: Poprun) -> None:
    (poprun.directory / "t").mkdir()
    full = "mount -t tmpfs -o size=64k none t && ! cat /dev/zero 2>/dev/null >t/file"
    ran = run_with_mounts(
        poprun,
        full,
        *job(2),
        *("sh", "-c", "echo $POPDIST_EXECUTABLE_CACHE_PATH"),
        TMPDIR=str(poprun.directory / "t"),
    )

    assert (ran.returncode, ran.stderr) == (0, b"")
    assert all(line.startswith(b"/tmp/poprun-cache-") for line in ran.stdout.split())
    assert len(ran.stdout.split()) == 2


def test_without_room_anywhere_the_directory_is_named(poprun: Poprun) -> None:
    # With all that is in /tmp: this checkout may be one of it.
    nowhere = (
        "mount -t tmpfs -o nr_inodes=1 none /dev/shm && "
        "mount --bind /tmp /tmp && mount -o remount,bind,ro /tmp"
    )
    words = ("--mpirun", "local", "--offline-mode=1", "true")
    ran = run_with_mounts(poprun, nowhere, *words)

    assert ran.returncode == 125
    assert re.fullmatch(
        r"poprun: error: The job's directory /tmp/poprun-[0-9a-f]{32}\.0 cannot be "
        r"made: Read-only file system\. Set TMPDIR to a directory with room for "
        r"files\.\n",
        ran.stderr.decode(),
    )


def test_a_signal_that_the_caller_has_blocked_still_ends_a_job(poprun: Poprun) -> None:
    block = (
        "import os, signal, sys; "
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32)); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    script = "grep SigBlk /proc/self/status; touch ready; exec sleep 600"
    process = subprocess.Popen(
        [sys.executable, "-c", block, POPRUN, *job(1), "sh", "-c", script],
        cwd=poprun.directory,
        env=poprun.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    poprun.started.append(process)
    wait_for((poprun.directory / "ready").exists, "the instance")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=200)

    assert (process.returncode, out.split()) == (143, [b"SigBlk:", b"0" * 16])
