import json
import os
import subprocess
import sys
import types
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import click
import pytest

from poprun import __version__
from poprun.errors import JobRequestError, LaunchError
from poprun.popctl.entry_point import SUBCOMMANDS, main
from poprun.texts.stdout import write

Table = Mapping[str, tuple[str, str]]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    """A subcommand whose module exists, and one whose module does not."""

    @click.command("greet", params=[click.Argument(["name"])])
    def greet(name: str) -> int:
        """Greet someone."""
        if name == "nobody":
            raise LaunchError("There is nobody.")
        write(f"Hello {name}\n")
        return 3

    module = types.ModuleType("popctl_test_greet")
    module.command = greet  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return {
        "greet": (module.__name__, "Greet someone."),
        "missing": ("popctl_test_missing", "Is imported by no help."),
    }


def test_a_subcommand_is_called_and_returns_the_exit_code(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["greet", "you"], table) == 3
    assert capsys.readouterr() == ("Hello you\n", "")


def test_the_help_lists_the_subcommands_and_imports_none(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--help"], table) == 0
    page = capsys.readouterr().out
    assert "Usage: popctl" in page
    assert "  greet    Greet someone.\n" in page
    assert "  missing  Is imported by no help.\n" in page


@pytest.mark.parametrize("words", [["help", "greet"], ["help", "greet", "you"]])
def test_help_shows_the_page_of_a_subcommand(
    table: Table, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(words, table) == 0
    page = capsys.readouterr().out
    assert page.startswith("Usage: popctl greet ")


def test_help_alone_lists_the_subcommands(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["help"], table) == 0
    assert "  greet    Greet someone.\n" in capsys.readouterr().out


def test_an_error_of_a_subcommand_is_one_sentence_and_its_exit_code(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["greet", "nobody"], table) == 125
    assert capsys.readouterr() == ("", "popctl: error: There is nobody.\n")


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (
            ["salute"],
            "There is no command 'salute'. The commands are: greet, missing.",
        ),
        (["greet"], "Missing argument 'NAME'."),
        (
            ["--version", "greet", "you"],
            "--version cannot be combined with other arguments.",
        ),
        (["--verbose"], "No such option"),
    ],
)
def test_a_mistake_is_refused_with_exit_code_2(
    table: Table, capsys: pytest.CaptureFixture[str], argv: list[str], sentence: str
) -> None:
    assert main(argv, table) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"popctl: error: {sentence}")


def test_without_a_subcommand_it_prints_its_help_on_stderr(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([], table) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "  greet    Greet someone.\n" in err


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_each_subcommand_of_the_table_is_a_command(name: str) -> None:
    module, text = SUBCOMMANDS[name]
    command = import_module(module).command

    assert isinstance(command, click.Command)
    assert command.name == name
    assert text.endswith(".")


def installed() -> Path:
    return Path(sys.executable).parent / "popctl"


def test_it_is_installed_beside_python() -> None:
    printed = subprocess.run(
        [installed(), "--version"], capture_output=True, text=True, check=True
    )

    assert printed.stdout == f"popctl {__version__}\n"


def test_a_stdout_that_cannot_be_written_is_reported() -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [installed(), "--version"], stdout=full, stderr=subprocess.PIPE, text=True
        )

    assert ended.returncode == 74
    assert ended.stderr == (
        "popctl: error: The output cannot be written: No space left on device.\n"
    )


def test_a_stdout_whose_reader_is_gone_is_no_error() -> None:
    read, output = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [installed(), "--version"], stdout=output, stderr=subprocess.PIPE
    )
    os.close(output)

    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("words", "code", "beginning"),
    [
        (["ps", "--json", "--nope"], 2, "No such option"),
        (["greet", "--json", "x"], 2, "No such option"),
        (["top", "--json", "ffff"], 1, "There is no job"),
        (["top", "--json", "--once"], 2, "--once and --json cannot be combined"),
    ],
)
def test_with_json_an_error_is_json_too(
    table: Table,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    code: int,
    beginning: str,
) -> None:
    def choose(word: str) -> None:
        raise JobRequestError(f"There is no job {word!r}.")

    monkeypatch.setattr("poprun.popctl.top.choose_job", choose)
    assert main(words, {**SUBCOMMANDS, **table}) == code
    shown = capsys.readouterr()
    value = json.loads(shown.out)

    assert (value["version"], value["exit_code"], value["hints"]) == (1, code, [])
    assert value["error"].startswith(beginning)
    assert shown.err == f"popctl: error: {value['error']}\n"
