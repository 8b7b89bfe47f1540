"""MPICH's hydra: how its mpirun is called, and what its messages mean."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from poprun.helpers.helper_commands import REMOTE_SHELL
from poprun.mpirun.values import (
    Context,
    Mpi,
    MpirunArguments,
    MpirunFailure,
    MpirunReport,
    clean,
)

_ABORTED = r"Abort\((-?\d+)\) on node (\d+) .*called MPI_Abort"
# A process was killed, or exited with another code than 0.
_PROCESS_FAILED = (
    r"EXIT STRING: .*\(signal (\d+)\)",
    r"(?s)BAD TERMINATION.*?EXIT CODE: (\d+)",
)
_PROXY_LOST = r"control_cb .*assert \(!closed\) failed"
_UNKNOWN_OPTION = r"unrecognized argument"


class Hydra(Mpi):
    """MPICH, and the MPIs that are made from it."""

    __slots__ = ()

    vendor: ClassVar[str] = "MPICH"
    launcher: ClassVar[str] = "hydra"
    version_pattern: ClassVar[str] = r"(?m)^HYDRA build details:\s+Version:\s+(\S+)"
    # The second is MPICH's where several MPIs are installed side by side.
    libraries: ClassVar[Sequence[str]] = ("libmpi.so.12", "libmpich.so.12")
    remote_variables: ClassVar[Mapping[str, str]] = {
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": REMOTE_SHELL,
    }
    # Segments of shared memory, and a description of the machine.
    leftovers: ClassVar[Sequence[str]] = (
        "/dev/shm/mpich_",
        "/tmp/hydra_hwloc_xmlfile_",
    )
    segment_pattern: ClassVar[str] = r".*/mpich_shm_[0-9a-f]+_\d+"

    def job_arguments(
        self, arguments: MpirunArguments, hosts: Mapping[str, int], *, as_root: bool
    ) -> list[str]:
        del as_root  # hydra needs no permission for root
        names = ",".join(f"{name}:{count}" for name, count in hosts.items())
        host_list = ["-hosts", names] if names else []
        return ["-bind-to", "none", *host_list, *arguments.passed_on]

    def instance_arguments(self, context: Context) -> list[str]:
        argv = ["-n", "1"]
        for name, value in context.exports.items():
            # A name without a value needs no option: the processes of hydra have the
            # caller's environment.
            if value is not None:
                argv += ["-env", name, value]
        return [*argv, *context.passed_on]

    def explain(self, text: str, exit_code: int) -> MpirunReport:
        """Return the reason that mpirun gives for its exit code.

        hydra reports a process that was killed, or exited with a code when it should
        not; on MPI_Abort it passes the code on without a message.
        """
        text = clean(text)
        rank, code = None, exit_code
        if match := re.search(_ABORTED, text):
            failure, rank, code = MpirunFailure.ABORTED, int(match[2]), int(match[1])
        elif any(re.search(reason, text) for reason in _PROCESS_FAILED):
            failure = MpirunFailure.OTHER
        elif re.search(_PROXY_LOST, text):
            failure = MpirunFailure.PROXY_LOST
        elif re.search(_UNKNOWN_OPTION, text):
            failure = MpirunFailure.OTHER
        elif exit_code and not text:
            failure = MpirunFailure.ABORTED
        else:
            failure = MpirunFailure.UNEXPLAINED if exit_code else MpirunFailure.NONE
        return MpirunReport(failure=failure, rank=rank, code=code, text=text)

    def explain_abort(
        self, report: MpirunReport, stderr: Iterable[tuple[int, str]]
    ) -> MpirunReport:
        """Find MPICH's own line on MPI_Abort in the output of an instance.

        mpirun passes the error code on without a message, and only its last byte.
        """
        if report.failure not in (MpirunFailure.ABORTED, MpirunFailure.NONE):
            return report
        for rank, text in stderr:
            matches = [m for m in re.finditer(_ABORTED, text) if int(m[2]) == rank]
            if matches:
                last = matches[-1]
                return MpirunReport(
                    failure=MpirunFailure.ABORTED,
                    rank=rank,
                    code=int(last[1]),
                    text=clean(last[0]),
                )
        return report
