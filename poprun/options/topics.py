"""The page of `poprun help`: where the documentation is on this machine."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from itertools import starmap
from pathlib import Path

# How long man may take to answer.
_MAN_TIMEOUT_S = 5

_WIDTH = 26  # of the first column

_COMMANDS = {
    "poprun --help": "all options",
    "poprun --dry-run PROGRAM": "what a job would start, with which variables",
    "poprun --show-config": "the values of all options, and where they come from",
    "popctl --help": "show, stop and debug the jobs on this machine",
    "popctl doctor": "check whether jobs can run on this machine",
    "vipu --help": "show and change partitions of emulated IPUs",
}

_PAGES = {
    "guide.md": "the user guide: every option in its context",
    "coming_from.md": "torchrun, mpirun, horovodrun and PopRun, with tables",
    "tutorial_torch.md": "first steps with torch",
    "tutorial_numpy.md": "first steps with numpy",
    "pytorch.md": "torch.distributed; gloo or popdist?",
    "horovod.md": "Horovod; see also poptorch.md, popart.md, tensorflow.md",
    "hosts.md": "several hosts, and Slurm",
    "troubleshooting.md": "error messages, and what to do about them",
    "environment.md": "the variables of an instance",
}


def topics_page(environ: Mapping[str, str]) -> str:
    """Return the page: the commands, the manual page and the pages of documentation."""
    lines = ["Commands:", *starmap(_line, _COMMANDS.items()), *_manual(environ), ""]
    folder = _find("docs", "share/doc/poprun/docs")
    if folder:
        lines.append(f"Pages in {folder}:")
        lines += starmap(_line, _PAGES.items())
    else:
        lines.append("The pages are in the folder docs of poprun's source code.")
    lines += ["", "To start a program that is called help, write: poprun -- help", ""]
    return "\n".join(lines)


def _line(typed: str, text: str) -> str:
    return f"  {typed:{_WIDTH}}{text}"


def _manual(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a line about the manual page, and one about MANPATH if man needs it."""
    page = _find("docs/poprun.1", "share/man/man1/poprun.1")
    if _man_finds_it(environ):
        yield _line("man poprun", "all options, as a manual page")
    elif page and shutil.which("man", path=environ.get("PATH")):
        yield f"  man {page}"
        yield _line("", "all options, as a manual page")
        folder, is_installed, _ = page.rpartition("/man1/")
        if is_installed:
            yield _line("", "For 'man poprun': export MANPATH=" + folder + ":")


def _man_finds_it(environ: Mapping[str, str]) -> bool:
    try:
        answer = subprocess.run(
            ["man", "-w", "poprun"],
            env=environ,
            capture_output=True,
            timeout=_MAN_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    # Minimal systems have a man that only prints a sentence.
    return answer.returncode == 0 and os.path.exists(answer.stdout.strip())


def _find(in_source: str, installed: str) -> str:
    """Return the path of a file or folder that belongs to poprun; "" without.

    It is in the source folder, or below the prefix of the installation, a few folders
    above the package.
    """
    _, _, source, *above = Path(__file__).absolute().parents
    if (source / "docs/poprun.1").exists():
        return f"{source}/{in_source}"
    paths = (folder / installed for folder in (source, *above))
    return next((str(path) for path in paths if path.exists()), "")
