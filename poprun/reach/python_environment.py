"""Finds the virtual environments that --synchronise-python-venv copies."""

import os
import sys
from collections.abc import Mapping

from poprun.errors import OptionError
from poprun.reach.copies import Copy

CONFIGURATION = "pyvenv.cfg"


def environment_copies(environ: Mapping[str, str]) -> list[Copy]:
    """Return the copies of the virtual environments that are active.

    Raises:
        OptionError: There is none.
    """
    noun, option = "virtual environment", "--synchronise-python-venv"
    options = ("--archive", "--delete")
    return [
        Copy(directory=directory, noun=noun, option=option, options=options)
        for directory in active_environments(environ)
    ]


def active_environments(
    environ: Mapping[str, str], prefix: str = sys.prefix, base: str = sys.base_prefix
) -> list[str]:
    """Return the virtual environments that are active: the shell's, and poprun's own.

    Raises:
        OptionError: There is none.
    """
    candidates = [environ.get("VIRTUAL_ENV", ""), prefix if prefix != base else ""]
    environments = [
        os.path.normpath(path)
        for path in candidates
        if os.path.isabs(path) and os.path.exists(os.path.join(path, CONFIGURATION))
    ]
    if not environments:
        raise OptionError(
            "--synchronise-python-venv copies the active virtual environment, but none "
            "is active. Activate one with '. DIRECTORY/bin/activate' and install "
            "poprun in it, or leave the option out."
        )
    return list(dict.fromkeys(environments))
