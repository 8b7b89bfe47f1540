"""Which mpirun a job is started with: the one asked for, or the nearest."""

import os
import sys
from collections.abc import Mapping

from poprun import __version__
from poprun.helpers.command import PYTHON
from poprun.mpirun.find import find
from poprun.mpirun.identify import detect
from poprun.mpirun.no_mpi import launcher
from poprun.mpirun.values import LOCAL, Mpi


def choose(asked: str | None, environ: Mapping[str, str]) -> Mpi:
    """Find an mpirun, and find out what it is.

    Args:
        asked: A path, a name, or "local" for poprun's own launcher.

    Raises:
        MpiNotFoundError: There is none, or what is called mpirun is none.
    """
    if asked == LOCAL:
        return launcher([*PYTHON, "local"], __version__)
    return detect(find(environ, asked, sys.prefix), environ, _packages())


def _packages() -> str:
    """Return where this Python's packages are, without asking a slow module."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return os.path.join(sys.prefix, "lib", version, "site-packages")
