import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from poprun import __version__
from poprun.errors import JobRequestError, LaunchError
from poprun.popctl.entry_point import main, popctl
from poprun.texts.stdout import write

SUBCOMMANDS = ["ps", "top", "stop", "attach", "logs", "doctor", "dump", "trace"]
COMMANDS = ", ".join([*SUBCOMMANDS, "greet"])


@pytest.fixture(autouse=True)
def greet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add a subcommand."""

    @click.command("greet", params=[click.Argument(["name"])])
    def greet(name: str) -> int:
        """Greet someone."""
        if name == "nobody":
            raise LaunchError("There is nobody.")
        write(f"Hello {name}\n")
        return 3

    monkeypatch.setitem(popctl.commands, "greet", greet)


def test_a_subcommand_is_called_and_returns_the_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["greet", "you"]) == 3
    assert capsys.readouterr() == ("Hello you\n", "")


def test_the_help_lists_the_subcommands_in_their_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("Usage: popctl")
    rows = page.partition("\nCommands:\n")[2].splitlines()
    assert [row.split()[0] for row in rows] == [*SUBCOMMANDS, "greet"]
    assert rows[-1] == "  greet   Greet someone."
    assert all(row.endswith(".") for row in rows)


@pytest.mark.parametrize("words", [["help", "greet"], ["help", "greet", "you"]])
def test_help_shows_the_page_of_a_subcommand(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(words) == 0
    page = capsys.readouterr().out
    assert page.startswith("Usage: popctl greet ")


def test_help_alone_lists_the_subcommands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    assert "  greet   Greet someone.\n" in capsys.readouterr().out


def test_an_error_of_a_subcommand_is_one_sentence_and_its_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["greet", "nobody"]) == 125
    assert capsys.readouterr() == ("", "popctl: error: There is nobody.\n")


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (
            ["salute"],
            f"There is no command 'salute'. The commands are: {COMMANDS}.",
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
    capsys: pytest.CaptureFixture[str], argv: list[str], sentence: str
) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"popctl: error: {sentence}")


def test_without_a_subcommand_it_prints_its_help_on_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "  greet   Greet someone.\n" in err


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
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    code: int,
    beginning: str,
) -> None:
    def choose(word: str) -> None:
        raise JobRequestError(f"There is no job {word!r}.")

    monkeypatch.setattr("poprun.popctl.top.choose_job", choose)
    assert main(words) == code
    shown = capsys.readouterr()
    value = json.loads(shown.out)

    assert (value["version"], value["exit_code"], value["hints"]) == (1, code, [])
    assert value["error"].startswith(beginning)
    assert shown.err == f"popctl: error: {value['error']}\n"
