import errno
import os
import stat
from pathlib import Path

import pytest

from poprun.trace.replaced_file import replaced_file


def write(path: Path, text: str) -> None:
    with replaced_file(os.fspath(path)) as file:
        file.write(text.encode())


@pytest.fixture
def without_unnamed_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the file system be one like NFS, where all files have names."""
    real = os.open

    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)


@pytest.mark.parametrize("system", ["", "without_unnamed_files"])
def test_a_file_keeps_its_mode_and_a_new_one_has_the_umask(
    tmp_path: Path, request: pytest.FixtureRequest, system: str
) -> None:
    if system:
        request.getfixturevalue(system)
    old = tmp_path / "old"
    old.write_text("a longer text than the next")
    old.chmod(0o640)
    umask = os.umask(0o027)
    try:
        write(old, "next")
        write(tmp_path / "new", "next")
    finally:
        os.umask(umask)

    texts = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert texts == {"old": "next", "new": "next"}
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_nothing_has_a_name_before_it_is_complete(tmp_path: Path) -> None:
    with replaced_file(os.fspath(tmp_path / "new")) as file:
        file.write(b"half")
        file.flush()
        assert list(tmp_path.iterdir()) == []

    assert (tmp_path / "new").read_text() == "half"


@pytest.mark.parametrize("system", ["", "without_unnamed_files"])
def test_after_an_error_a_file_is_as_it_was(
    tmp_path: Path, request: pytest.FixtureRequest, system: str
) -> None:
    if system:
        request.getfixturevalue(system)
    old = tmp_path / "old"
    old.write_text("older")
    with pytest.raises(TypeError), replaced_file(os.fspath(old)) as file:
        file.write("no bytes")  # type: ignore[arg-type]

    assert list(tmp_path.iterdir()) == [old]
    assert old.read_text() == "older"


@pytest.mark.usefixtures("without_unnamed_files")
def test_files_whose_names_another_user_guesses_change_nothing(tmp_path: Path) -> None:
    guessed = tmp_path / f".poprun-trace-{os.getpid()}"
    guessed.write_text("of another user")
    write(tmp_path / "trace", "next")

    assert guessed.read_text() == "of another user"
    assert (tmp_path / "trace").read_text() == "next"


def test_the_file_of_another_user_stays_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchown", refuse)
    theirs = tmp_path / "theirs"
    theirs.write_text("a longer text than the next")
    before = theirs.stat().st_ino
    write(theirs, "next")

    assert theirs.read_text() == "next"
    assert theirs.stat().st_ino == before
    assert list(tmp_path.iterdir()) == [theirs]


def test_a_directory_in_which_no_file_can_be_made_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "none" / "file", "next")
