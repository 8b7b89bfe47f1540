"""What the commands that click reads have in common."""

import subprocess
import sys

import click
import pytest

from poprun.texts.click_program import Seconds, carry_out

PROGRAM = """
import click, sys
from poprun.texts.click_program import carry_out

@click.command()
@click.version_option("1.2")
def program():
    raise OSError(28, "a mistake of the program's")

sys.exit(carry_out(program, "program", None))
"""


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    with open("/dev/full", "w") as full:
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_a_page_that_cannot_be_written_is_one_sentence(option: str) -> None:
    done = run(option)

    assert (done.returncode, done.stderr) == (
        74,
        "program: error: The output cannot be written: No space left on device.\n",
    )


def test_another_error_of_the_system_is_none_of_the_output() -> None:
    done = run()

    assert done.returncode == 1
    assert done.stderr.endswith("OSError: [Errno 28] a mistake of the program's\n")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0.1", "0.1 is not in the range 0.5<=x<=3600."),
        ("2h", "7200.0 is not in the range 0.5<=x<=3600."),
        (
            "soon",
            "'soon' is neither a number of seconds nor a duration such as 90s, "
            "5m or 1h30m.",
        ),
    ],
)
def test_what_is_no_number_of_seconds_is_refused(
    text: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    option = click.Option(["--interval"], type=Seconds(0.5, 3600))
    command = click.Command("program", params=[option], callback=print)

    assert carry_out(command, "program", ["--interval", text]) == 2
    assert capsys.readouterr() == (
        "",
        f"program: error: Invalid value for '--interval': {sentence}\n",
    )
