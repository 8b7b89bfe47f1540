"""What of a machine popctl doctor warns about: facts -> checks."""

import ctypes
import glob
import mmap
import os
import resource
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from poprun.popctl import machine_checks
from poprun.popctl.machine_checks import FAIL, PASS, WARN


def test_too_little_shared_memory_is_a_warning_with_its_mend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = SimpleNamespace(f_bavail=63 * 256, f_frsize=4096)
    monkeypatch.setattr(machine_checks.os, "statvfs", lambda path: room)

    check = machine_checks.check_shared_memory()

    assert (check.status, check.text) == (
        WARN,
        "63 MiB free in /dev/shm, less than 64: an MPI may end with SIGBUS",
    )
    assert "--shm-size" in check.mend


def test_no_mpirun_is_a_failure() -> None:
    check = machine_checks.check_mpirun({"POPRUN_MPIRUN": "/no/mpirun", "PATH": ""})

    assert check.status == FAIL
    assert "/no/mpirun" in check.text
    assert "--mpirun local" in check.mend


def test_few_open_files_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 512))

    check = machine_checks.check_limits()

    assert (check.status, check.mend) == (
        WARN,
        "ulimit -n 512 raises it in this shell.",
    )


def test_a_localhost_of_another_address_is_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = (socket.AF_INET, 1, 6, "", ("10.0.0.9", 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [address])

    check = machine_checks.check_names()

    assert (check.status, check.text) == (FAIL, "localhost is 10.0.0.9")


def test_a_temporary_directory_of_a_long_name_is_a_warning(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 60)
    long.mkdir()

    check = machine_checks.check_temporary({"TMPDIR": str(long)})

    assert check.status == WARN
    assert "Set TMPDIR" in check.mend


@pytest.mark.parametrize("encoding", ["utf-8", "UTF-8"])
def test_every_spelling_of_utf_8_will_do(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setattr(machine_checks.locale, "getencoding", lambda: encoding)

    assert machine_checks.check_encoding().status == PASS


def test_an_ascii_terminal_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks.locale, "getencoding", lambda: "ANSI_X3.4-1968")

    check = machine_checks.check_encoding()

    assert (check.status, check.mend) == (WARN, "export LANG=C.UTF-8")


def test_a_segment_of_a_job_that_starts_meanwhile_is_no_leftover(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    find = glob.glob

    def start_job_and_find(pattern: str) -> list[str]:
        if pattern.startswith("/proc/"):
            (tmp_path / "mpich_shm_cafe_0").touch()
        return find(pattern)

    monkeypatch.setattr(machine_checks, "SHARED_MEMORY", os.fspath(tmp_path))
    monkeypatch.setattr(glob, "glob", start_job_and_find)

    assert machine_checks.unused_segments() == []
    assert machine_checks.unused_segments() == [f"{tmp_path}/mpich_shm_cafe_0"]


def test_a_segment_that_a_process_has_open_or_in_its_memory_is_no_leftover(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # In /dev/shm another test may take it for its job's and remove it.
    monkeypatch.setattr(machine_checks, "SHARED_MEMORY", os.fspath(tmp_path))
    path = f"{tmp_path}/mpich_shm_{os.getpid():08x}_77"
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    with open(path, "wb+", buffering=0) as file:
        file.truncate(4096)
        assert path not in machine_checks.unused_segments()
        # Python's own mmap keeps the file open.
        access = mmap.PROT_READ, mmap.MAP_SHARED
        memory = libc.mmap(None, 4096, *access, file.fileno(), ctypes.c_long(0))

    assert path not in machine_checks.unused_segments()
    libc.munmap(ctypes.c_void_p(memory), 4096)
    assert path in machine_checks.unused_segments()
