import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from poprun.reach.own_host import temporary_directories
from poprun.reach.own_host.temporary_directories import (
    private_directory_place,
    temporary_directory,
)


def room(free: int, files: int = 0, free_files: int = 0) -> SimpleNamespace:
    return SimpleNamespace(
        f_bavail=free // 4096, f_frsize=4096, f_files=files, f_favail=free_files
    )


@pytest.mark.parametrize(
    ("free", "place"),
    [
        pytest.param(room(64 << 20), "/dev/shm", id="enough"),
        pytest.param(room((64 << 20) - 4096), "TMPDIR", id="too-little-memory"),
        pytest.param(room(64 << 20, 2000, 1024), "/dev/shm", id="enough-inodes"),
        pytest.param(room(64 << 20, 2000, 1023), "TMPDIR", id="too-few-inodes"),
    ],
)
def test_files_of_mpirun_are_in_memory_if_there_is_enough_of_it(
    free: SimpleNamespace, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: free)
    monkeypatch.setattr(temporary_directories, "LONGEST_TEMPORARY", 1000)

    place = str(tmp_path) if place == "TMPDIR" else place
    assert private_directory_place({"TMPDIR": str(tmp_path)}) == place


def test_without_shared_memory_a_directory_of_a_long_name_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_such_place(path: str) -> None:
        raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr(os, "statvfs", no_such_place)
    long = tmp_path / ("x" * 50)
    long.mkdir()

    # mpirun's sockets would have paths that the kernel cuts.
    assert private_directory_place({"TMPDIR": str(long)}) == "/tmp"


@pytest.mark.parametrize(
    ("elsewhere", "place"),
    [
        pytest.param([], "/dev/shm", id="no-other-hosts"),
        pytest.param([["/dev/shm", "/tmp"], ["/tmp"]], "/tmp", id="one-without-memory"),
        pytest.param([["/dev/shm"], ["/scratch"]], "/dev/shm", id="none-in-common"),
    ],
)
def test_files_of_mpirun_are_where_all_hosts_have_room_for_them(
    elsewhere: list[list[str]], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: room(64 << 20))

    assert private_directory_place({}, elsewhere) == place


@pytest.mark.parametrize(
    "wish", ["", "relative", "/nothing/there", "/dev/null", "/proc/self"]
)
def test_a_temporary_directory_that_is_of_no_use_is_not_used(
    wish: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "relative").mkdir()
    # Root may write everywhere.
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: path != "/proc/self" and access(path, mode)
    )

    assert temporary_directory({"TMPDIR": wish}) == "/tmp"


def test_a_directory_is_checked_without_a_file_that_a_death_would_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    write = os.write

    def listing_write(descriptor: int, data: bytes) -> int:
        seen.append(os.listdir(tmp_path))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", listing_write)

    assert temporary_directory({"TMPDIR": str(tmp_path)}) == str(tmp_path)
    assert seen == [[]]


def test_a_directory_is_checked_where_a_file_cannot_be_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = os.open

    def open_as_on_nfs(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported", path)
        return original(path, flags, mode)

    monkeypatch.setattr(os, "open", open_as_on_nfs)

    assert temporary_directory({"TMPDIR": str(tmp_path)}) == str(tmp_path)
    assert os.listdir(tmp_path) == []
    assert temporary_directory({"TMPDIR": "/proc/self"}) == "/tmp"


def test_a_temporary_directory_that_the_user_names_is_used(tmp_path: Path) -> None:
    assert temporary_directory({"TMPDIR": str(tmp_path)}) == str(tmp_path)
    assert temporary_directory({}) == "/tmp"
