"""MPICH's hydra, and Intel MPI's: how mpirun is called, and what its messages mean."""

import re
from collections.abc import Mapping, Sequence

from poprun.helpers.command import REMOTE_SHELL
from poprun.mpirun.environment import without_batch_system, without_outer_mpi
from poprun.mpirun.messages import clean
from poprun.mpirun.values import Context, Failure, Mpi, MpirunArguments, MpiVerdict

# Segments of shared memory, and a description of the machine.
LEFTOVERS: Sequence[str] = ("/dev/shm/mpich_", "/tmp/hydra_hwloc_xmlfile_")
# The name of a segment, in /dev/shm.
SEGMENT_NAME = r"mpich_shm_[0-9a-f]+_\d+"

_ABORTED = r"Abort\((-?\d+)\) on node (\d+) .*called MPI_Abort"
# A process was killed, or exited with another code than 0.
_PROCESS_FAILED = (
    r"EXIT STRING: .*\(signal (\d+)\)",
    r"(?s)BAD TERMINATION.*?EXIT CODE: (\d+)",
)
_PROXY_LOST = r"control_cb .*assert \(!closed\) failed"
_UNKNOWN_OPTION = r"unrecognized argument"


def job_arguments(
    arguments: MpirunArguments, hosts: Mapping[str, int], *, as_root: bool
) -> list[str]:
    """Return mpirun's arguments that count for the whole job.

    hydra asks nothing of root. The hosts get the instances in blocks.
    """
    del as_root
    names = ",".join(f"{name}:{count}" for name, count in hosts.items())
    host_list = ["-hosts", names] if names else []
    return ["-bind-to", "none", *host_list, *arguments.passed_on]


def instance_arguments(context: Context) -> list[str]:
    """Return mpirun's arguments before the argv of one instance.

    Names to forward need none: its processes have the caller's environment.
    """
    argv = ["-n", "1"]
    for name, value in context.exports.items():
        if value is not None:
            argv += ["-env", name, value]
    return [*argv, *context.passed_on]


def environment(mpi: Mpi, caller: Mapping[str, str], directory: str) -> dict[str, str]:
    """Return mpirun's own environment. The directory is removed with the job."""
    del mpi
    return without_batch_system(without_outer_mpi(caller)) | {"TMPDIR": directory}


def remote_environment(mpi: Mpi, subnet: str) -> dict[str, str]:
    """Return the variables by which mpirun starts its proxies on other hosts."""
    del mpi, subnet
    return {"HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXEC": REMOTE_SHELL}


def explain(text: str, exit_code: int) -> MpiVerdict:
    """Return the reason that mpirun gives for its exit code.

    hydra reports a process that was killed, or exited with a code when it should
    not; on MPI_Abort it passes the code on without a message.
    """
    text = clean(text)
    if match := re.search(_ABORTED, text):
        return MpiVerdict(
            failure=Failure.ABORTED, rank=int(match[2]), code=int(match[1]), text=text
        )
    if any(re.search(reason, text) for reason in _PROCESS_FAILED):
        failure = Failure.OTHER
    elif re.search(_PROXY_LOST, text):
        failure = Failure.PROXY_LOST
    elif re.search(_UNKNOWN_OPTION, text):
        failure = Failure.OTHER
    elif exit_code and not text:
        failure = Failure.ABORTED
    else:
        failure = Failure.UNEXPLAINED if exit_code else Failure.NONE
    return MpiVerdict(failure=failure, code=exit_code, text=text)


def explain_abort(stderr: str, rank: int) -> MpiVerdict | None:
    """Find MPICH's own line on MPI_Abort in what an instance wrote.

    mpirun passes the error code on without a message, and of it the last byte only.
    """
    matches = [m for m in re.finditer(_ABORTED, stderr) if int(m[2]) == rank]
    if not matches:
        return None
    last = matches[-1]
    return MpiVerdict(
        failure=Failure.ABORTED, rank=rank, code=int(last[1]), text=clean(last[0])
    )
