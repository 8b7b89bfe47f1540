"""The commands of pages that teach print what the pages show.

In them a block ```python file=NAME is a file, and a block that begins with "$ " a
session in a folder with the files: commands, each with what it prints. A command may
go on after a backslash. "..." stands for any text. test_setups.py has the pages that
set something up elsewhere.
"""

import doctest
import re
import shutil
import subprocess
from itertools import takewhile

import pytest
from conftest import ROOT, Poprun

PAGES = (
    *("tutorial_numpy.md", "tutorial_torch.md", "tutorial_ddp.md", "guide.md"),
    *("coming_from.md", "python_calls.md", "continuous_integration.md"),
)
FILE = re.compile(r"```python file=(\S+)\n(.*?)```", re.DOTALL)
SESSION = re.compile(r"```\n(\$ .*?)```", re.DOTALL)

pytestmark = pytest.mark.mpi


def sessions(text: str) -> list[tuple[str, str]]:
    """Return the commands of a page and what each prints."""
    commands = []
    for session in SESSION.findall(text):
        for part in re.split(r"(?m)^\$ ", session)[1:]:
            lines = part.splitlines(keepends=True)
            # Those that end with a backslash, and one more.
            length = 1 + sum(1 for _ in takewhile(lambda x: x.endswith("\\\n"), lines))
            commands.append(("".join(lines[:length]), "".join(lines[length:])))
    return commands


# The programs for torch take ten times as long on a machine that is busy.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_prints_what_the_page_shows(
    poprun: Poprun, page: str
) -> None:
    text = (ROOT / "docs" / page).read_text()
    poprun.script("train.py", "print('trained')\n")  # of pages for any program
    for name, program in FILE.findall(text):
        poprun.script(name, program)
    shutil.copytree(ROOT / "examples", poprun.directory / "examples")
    # As a user has it.
    environ = {k: v for k, v in poprun.environ.items() if k != "POPRUN_SUMMARY"}
    commands = sessions(text)
    assert commands

    for command, expected in commands:
        ran = subprocess.run(
            ["bash", "-c", command],
            cwd=poprun.directory,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
            check=False,
        )

        same = doctest.OutputChecker().check_output(
            expected, ran.stdout, doctest.ELLIPSIS
        )
        assert same, f"$ {command}\n{ran.stdout}"
