"""The folders and files of --output-filename and --log-dir."""

import os
from pathlib import Path

import pytest

from poprun.errors import OptionError, PoprunError
from poprun.output.output_files import OutputFile, OutputFolder, make_files, path_of


def folder_of_run(directory: Path, run: str) -> OutputFolder:
    return OutputFolder(option="--log-dir", directory=str(directory), run=run)


def test_mpirun_numbers_the_folders_of_attempts_from_1() -> None:
    folder = OutputFolder(option="--output-filename", directory="logs")

    assert [folder.of_attempt(n) for n in (0, 1, 11)] == ["logs/1", "logs/2", "logs/12"]


def test_a_run_has_a_folder_with_one_for_each_attempt() -> None:
    folder = OutputFolder(option="--log-dir", directory="logs", run="today")

    assert folder.of_attempt(0) == "logs/today/attempt-0"
    assert folder.of_attempt(11) == "logs/today/attempt-11"


def test_an_attempt_has_two_files_for_each_instance(tmp_path: Path) -> None:
    make_files(folder_of_run(tmp_path, "today"), 0, 2)
    make_files(folder_of_run(tmp_path, "today"), 1, 1)

    names = [p.relative_to(tmp_path) for p in (tmp_path / "today").rglob("std*")]
    assert sorted(map(str, names)) == [
        "today/attempt-0/rank.0/stderr",
        "today/attempt-0/rank.0/stdout",
        "today/attempt-0/rank.1/stderr",
        "today/attempt-0/rank.1/stdout",
        "today/attempt-1/rank.0/stderr",
        "today/attempt-1/rank.0/stdout",
    ]


def test_latest_is_a_link_to_the_last_run_and_nothing_else_is_left(
    tmp_path: Path,
) -> None:
    for run in ("monday", "tuesday"):
        make_files(folder_of_run(tmp_path, run), 0, 1)

        assert os.readlink(tmp_path / "latest") == run
    assert sorted(os.listdir(tmp_path)) == ["latest", "monday", "tuesday"]


def test_what_a_link_of_that_name_names_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/latest").symlink_to(tmp_path / "precious")

    make_files(folder_of_run(tmp_path / "logs", "today"), 0, 1)

    assert os.readlink(tmp_path / "logs/latest") == "today"
    assert os.listdir(tmp_path / "precious") == []


def test_a_file_or_folder_in_the_place_of_the_link_is_not_replaced(
    tmp_path: Path,
) -> None:
    (tmp_path / "latest").mkdir()

    with pytest.raises(OptionError) as refusal:
        make_files(folder_of_run(tmp_path, "today"), 0, 1)

    assert str(refusal.value) == (
        f"--log-dir '{tmp_path}' cannot be written: {tmp_path}/latest: it exists and "
        "is not a link. Name a directory where you can create files."
    )


@pytest.mark.parametrize(("attempt", "code"), [(0, 2), (1, 125)])
def test_only_of_a_first_attempt_the_option_is_to_blame(
    tmp_path: Path, attempt: int, code: int
) -> None:
    (tmp_path / "logs").touch()

    with pytest.raises(PoprunError) as refusal:
        make_files(
            OutputFolder(option="--log-dir", directory=str(tmp_path / "logs")),
            attempt,
            1,
        )

    assert refusal.value.exit_code == code
    assert str(refusal.value) == (
        f"--log-dir '{tmp_path}/logs' cannot be written: "
        f"{tmp_path}/logs/{attempt + 1}: "
        "Not a directory. Name a directory where you can create files."
    )


def test_a_folder_of_mpirun_has_no_link(tmp_path: Path) -> None:
    make_files(OutputFolder(option="--output-filename", directory=str(tmp_path)), 0, 1)

    assert os.listdir(tmp_path) == ["1"]


def test_what_a_stream_brings_is_in_the_file_of_its_instance(tmp_path: Path) -> None:
    folder = folder_of_run(tmp_path, "today")
    file = OutputFile(path_of(folder.of_attempt(1), 3, "stderr"))
    file.write(b"so \xff")
    file.close()

    path = tmp_path / "today/attempt-1/rank.3/stderr"
    assert path.read_bytes() == b"so \xff"
