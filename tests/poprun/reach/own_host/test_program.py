import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poprun.errors import ProgramNotExecutableError, ProgramNotFoundError
from poprun.reach.own_host.program import find_program


def script(path: Path, text: str = "#!/bin/sh\n", mode: int = 0o755) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def not_found(name: str, path: str | None, cwd: Path) -> str:
    with pytest.raises(ProgramNotFoundError) as refusal:
        find_program([name], path, str(cwd))
    return str(refusal.value)


def not_executable(name: str, path: str | None, cwd: Path) -> str:
    with pytest.raises(ProgramNotExecutableError) as refusal:
        find_program([name], path, str(cwd))
    return str(refusal.value)


def test_path_comes_before_the_current_directory(tmp_path: Path) -> None:
    on_path = script(tmp_path / "bin" / "train")
    script(tmp_path / "train")

    assert find_program(["train"], str(tmp_path / "bin"), str(tmp_path)) == str(on_path)


def test_the_first_directory_of_path_counts(tmp_path: Path) -> None:
    first = script(tmp_path / "first" / "train")
    script(tmp_path / "second" / "train")
    search_path = f"{tmp_path / 'none'}:{first.parent}:{tmp_path / 'second'}"

    assert find_program(["train"], search_path, "/") == str(first)


def test_a_program_in_the_current_directory_needs_no_dot_slash(tmp_path: Path) -> None:
    program = script(tmp_path / "train")

    assert find_program(["train", "--lr", "1"], "/usr/bin", str(tmp_path)) == str(
        program
    )


def test_a_name_with_a_slash_is_relative_to_the_current_directory(
    tmp_path: Path,
) -> None:
    program = script(tmp_path / "bin" / "train")

    assert find_program(["bin/train"], "", str(tmp_path)) == str(program)
    assert find_program([str(program)], "", "/") == str(program)


def test_without_a_path_the_usual_directories_are_searched() -> None:
    assert find_program(["sh"], None, "/nowhere") == "/bin/sh"


def test_a_file_on_path_that_cannot_be_run_does_not_hide_one_that_can(
    tmp_path: Path,
) -> None:
    script(tmp_path / "first" / "train", mode=0o644)
    program = script(tmp_path / "second" / "train")
    search_path = f"{tmp_path / 'first'}:{tmp_path / 'second'}"

    assert find_program(["train"], search_path, "/") == str(program)


def test_an_elf_binary_is_accepted(tmp_path: Path) -> None:
    assert find_program(["/bin/sh"], "", str(tmp_path)) == "/bin/sh"


def test_a_missing_program_is_named_with_where_it_was_searched(tmp_path: Path) -> None:
    assert not_found("simulate", "/usr/nothing:/opt/nothing", tmp_path) == (
        "There is no program 'simulate', neither on PATH nor in the current "
        f"directory, '{tmp_path}'."
    )
    assert not_found("simulate", None, tmp_path) == (
        "There is no program 'simulate', neither in '/bin:/usr/bin' (PATH is not "
        f"set) nor in the current directory, '{tmp_path}'."
    )


def test_a_missing_program_help_is_answered_with_the_help_of_poprun(
    tmp_path: Path,
) -> None:
    assert not_found("help", "", tmp_path) == (
        "There is no program 'help', neither on PATH nor in the current directory, "
        f"'{tmp_path}'. 'poprun help', without more words, shows where to read more."
    )


def test_a_similar_name_is_proposed(tmp_path: Path) -> None:
    script(tmp_path / "bin" / "pretrain")
    script(tmp_path / "train.py", mode=0o644)

    assert not_found("pretrian", str(tmp_path / "bin"), tmp_path) == (
        "There is no program 'pretrian'. Did you mean 'pretrain'?"
    )
    assert not_found("trian.py", "", tmp_path) == (
        "There is no program 'trian.py'. Did you mean 'train.py'?"
    )
    assert not_found("./trian.py", "", tmp_path) == (
        "There is no program './trian.py'. Did you mean './train.py'?"
    )


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    assert not_found("lib/train", "", tmp_path) == (
        f"There is no program 'lib/train': the directory '{tmp_path}/lib' "
        "does not exist."
    )


def test_a_broken_link_is_named_with_its_target(tmp_path: Path) -> None:
    (tmp_path / "train").symlink_to("/nowhere/train")

    assert not_found("./train", "", tmp_path) == (
        "There is no program './train': it is a link to '/nowhere/train', "
        "which does not exist."
    )


def test_an_empty_name_is_explained(tmp_path: Path) -> None:
    assert not_found("", "/bin", tmp_path) == (
        "The program's name is empty. Is there a variable in it that is not set?"
    )


def test_a_nul_byte_is_refused(tmp_path: Path) -> None:
    assert not_found("a\0b", "/bin", tmp_path) == (
        "There is no program 'a\\x00b': a name cannot contain a NUL byte."
    )


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("my train", "'my train'"),
        ("it's", '"it\'s"'),
        ("a\nb", r"'a\nb'"),
        ("\x1b[31m", r"'\x1b[31m'"),
        ("caf\udce9", r"'caf\udce9'"),
    ],
)
def test_odd_names_are_shown_escaped(tmp_path: Path, name: str, shown: str) -> None:
    assert not_found(name, "/nothing", tmp_path).startswith(
        f"There is no program {shown}, neither on PATH "
    )


@pytest.mark.parametrize("name", ["my train", "it's", "a\nb", "caf\udce9", "-x", "a:b"])
def test_odd_names_are_found(tmp_path: Path, name: str) -> None:
    script(tmp_path / name)

    assert find_program([name], "", str(tmp_path)) == f"{tmp_path}/{name}"


def test_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()

    expected = "'train' is a directory, not a program. Name a file in it."
    assert not_executable("train", "/bin", tmp_path) == expected
    assert not_executable("/", "/bin", tmp_path) == (
        "'/' is a directory, not a program. Name a file in it."
    )


def test_a_device_is_refused(tmp_path: Path) -> None:
    assert not_executable("/dev/null", "", tmp_path) == (
        "'/dev/null' is not a regular file and cannot be run."
    )


def test_a_python_file_that_is_not_executable_is_run_with_python(
    tmp_path: Path,
) -> None:
    script(tmp_path / "train.py", mode=0o644)

    assert not_executable("train.py", "/bin", tmp_path) == (
        "train.py is not executable; run it with: python train.py"
    )


def test_another_file_that_is_not_executable_wants_chmod(tmp_path: Path) -> None:
    script(tmp_path / "my train", mode=0o644)

    assert not_executable("my train", "/bin", tmp_path) == (
        "'my train' is not executable; make it executable with: chmod +x 'my train'"
    )


def test_a_missing_interpreter_is_named_with_the_program(tmp_path: Path) -> None:
    script(tmp_path / "train", "#! /opt/none/python3 -u\n")

    assert not_found("train", "/bin", tmp_path) == (
        "The first line of 'train' names the interpreter "
        "'/opt/none/python3', which does not exist. Correct its first "
        "line, or name the interpreter before the program."
    )


def test_line_ends_of_windows_are_recognized(tmp_path: Path) -> None:
    script(tmp_path / "train", "#!/bin/sh\r\necho\r\n")

    assert not_found("train", "/bin", tmp_path) == (
        "The first line of 'train' names the interpreter '/bin/sh\\r', "
        "which does not exist. Its lines end as on Windows: convert them "
        "with: dos2unix"
    )


def test_an_interpreter_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    script(tmp_path / "train", f"#!{tmp_path}\n")

    assert not_executable("train", "/bin", tmp_path) == (
        f"The first line of 'train' names the interpreter '{tmp_path}', which is "
        "not executable. "
        "Correct its first line, or name the interpreter before the "
        "program."
    )


def test_a_first_line_without_an_interpreter_is_refused(tmp_path: Path) -> None:
    script(tmp_path / "train", "#!\n")

    assert not_executable("train", "/bin", tmp_path) == (
        "'train' begins with '#!' but names no interpreter. Make "
        "'#!/bin/sh' or '#!/usr/bin/env python3' its first line."
    )


@pytest.mark.parametrize(
    ("text", "content"),
    [("echo hello\n", "is neither a binary nor a script"), ("", "is empty")],
)
def test_a_file_that_the_kernel_cannot_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, content: str
) -> None:
    monkeypatch.setattr(
        "poprun.reach.own_host.program._OTHER_FORMATS", str(tmp_path / "none")
    )
    script(tmp_path / "train", text)

    assert not_executable("train", "/bin", tmp_path) == (
        f"'train' {content}: its first line does not name an interpreter. "
        "Make '#!/bin/sh' or '#!/usr/bin/env python3' its first line, or "
        "run it with: sh train"
    )


def test_a_python_file_that_the_kernel_cannot_run_is_run_with_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "poprun.reach.own_host.program._OTHER_FORMATS", str(tmp_path / "none")
    )
    script(tmp_path / "fail.py", "1 / 0")

    assert not_executable("./fail.py", "/bin", tmp_path) == (
        "'./fail.py' is neither a binary nor a script: its first line does "
        "not name an interpreter. Make '#!/usr/bin/env python3' its first "
        "line, or run it with: python ./fail.py"
    )


def test_a_format_that_the_kernel_was_taught_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    formats = tmp_path / "formats"
    formats.mkdir()
    for entry in ("register", "status", "wasm"):
        (formats / entry).touch()
    monkeypatch.setattr("poprun.reach.own_host.program._OTHER_FORMATS", str(formats))
    program = script(tmp_path / "train", "\0asm")

    assert find_program(["train"], "", str(tmp_path)) == str(program)


@given(st.binary(max_size=300), st.sampled_from(["", "/bin", "/usr/bin::/bin"]))
def test_any_bytes_are_a_program_or_are_refused(name: bytes, search_path: str) -> None:
    try:
        path = find_program([os.fsdecode(name)], search_path, "/nowhere")
    except (ProgramNotFoundError, ProgramNotExecutableError) as refusal:
        str(refusal).encode()
    else:
        assert os.access(path, os.X_OK)


@pytest.mark.parametrize("name", ["tool x.py", "./tool x.py", "tool  -v"])
def test_a_command_in_quotes_is_told_to_be_one_word(tmp_path: Path, name: str) -> None:
    script(tmp_path / "tool")

    with pytest.raises(ProgramNotFoundError) as refusal:
        find_program([name], str(tmp_path), str(tmp_path))

    assert refusal.value.__notes__ == [
        f"It is one word with a space in it. Write it without quotes: poprun {name}"
    ]


def test_a_command_in_quotes_is_not_taken_for_a_similar_program(tmp_path: Path) -> None:
    script(tmp_path / "python")
    script(tmp_path / "python2.7")

    assert not_found("python a2.py", str(tmp_path), tmp_path).endswith(
        f"nor in the current directory, {str(tmp_path)!r}."
    )


def test_other_names_with_spaces_get_no_hint(tmp_path: Path) -> None:
    with pytest.raises(ProgramNotFoundError) as refusal:
        find_program(["no tool"], str(tmp_path), str(tmp_path))

    assert not hasattr(refusal.value, "__notes__")
