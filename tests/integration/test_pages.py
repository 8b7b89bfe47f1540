"""The commands of pages that teach print what the pages show.

In them a block ```python file=NAME is a file, and a block that begins with "$ " a
session in a folder with the files: commands, each with what it prints. "..." stands for
any text.
"""

import doctest
import re
import subprocess

import pytest
from conftest import ROOT, Poprun

PAGES = ("tutorial_numpy.md", "coming_from.md", "python_calls.md")
FILE = re.compile(r"```python file=(\S+)\n(.*?)```", re.DOTALL)
SESSION = re.compile(r"```\n(\$ .*?)```", re.DOTALL)

pytestmark = pytest.mark.mpi


def sessions(text: str) -> list[tuple[str, str]]:
    """Return the commands of a page and what each prints."""
    commands = []
    for session in SESSION.findall(text):
        for part in re.split(r"(?m)^\$ ", session)[1:]:
            command, _, printed = part.partition("\n")
            commands.append((command, printed))
    return commands


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_prints_what_the_page_shows(
    poprun: Poprun, page: str
) -> None:
    text = (ROOT / "docs" / page).read_text()
    for name, program in FILE.findall(text):
        poprun.script(name, program)
    commands = sessions(text)
    assert commands

    for command, expected in commands:
        ran = subprocess.run(
            ["bash", "-c", command],
            cwd=poprun.directory,
            env=poprun.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )

        same = doctest.OutputChecker().check_output(
            expected, ran.stdout, doctest.ELLIPSIS
        )
        assert same, f"$ {command}\n{ran.stdout}"
