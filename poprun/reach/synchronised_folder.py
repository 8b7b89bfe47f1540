"""What --sync copies of a folder to other hosts, and what it leaves out."""

import os
import re
from collections.abc import Iterator

from poprun.reach.copies import MARKER, Copy
from poprun.reach.python_environment import CONFIGURATION

# Histories, caches, and what belongs to one machine.
EXCLUDED = (
    *(".git", ".hg", ".svn", "__pycache__", ".ipynb_checkpoints"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".nox", ".tox", ".venv"),
)


def folder_copy(directory: str) -> Copy:
    """Return the copy of a folder: nothing is deleted on the other hosts.

    Files named .rsync-filter exclude more, by rsync's own rules. Sockets and devices
    are left out.
    """
    excluded = [*EXCLUDED, f"{MARKER}*", *_environments_in(directory)]
    options = ["--archive", "--no-D", "-F", *(f"--exclude={e}" for e in excluded)]
    return Copy(directory=directory, noun="folder", option="--sync", options=options)


def _environments_in(directory: str) -> Iterator[str]:
    """Yield a pattern of rsync for each virtual environment, whatever its name."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if os.path.exists(os.path.join(entry.path, CONFIGURATION)):
                # rsync reads these characters in a pattern as a shell does.
                yield "/" + re.sub(r"([*?[\\])", r"\\\1", entry.name)
