"""MPICH's hydra: how its mpirun is called, and what its messages mean."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from poprun.helpers.helper_commands import REMOTE_SHELL
from poprun.mpirun.values import (
    Context,
    Mpi,
    MpirunArguments,
    MpirunFailure,
    MpirunReport,
)

_ABORTED = r"Abort\((?P<code>-?\d+)\) on node (?P<rank>\d+) .*called MPI_Abort"


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
    messages: ClassVar[Sequence[tuple[str, MpirunFailure]]] = (
        (_ABORTED, MpirunFailure.ABORTED),
        # A process was killed, or exited with another code than 0.
        (r"EXIT STRING: .*\(signal \d+\)", MpirunFailure.OTHER),
        (r"(?s)BAD TERMINATION.*?EXIT CODE: \d+", MpirunFailure.OTHER),
        (r"control_cb .*assert \(!closed\) failed", MpirunFailure.PROXY_LOST),
        (r"unrecognized argument", MpirunFailure.OTHER),
    )

    def job_arguments(
        self, arguments: MpirunArguments, hosts: Mapping[str, int]
    ) -> list[str]:
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
        report = super().explain(text, exit_code)
        if exit_code and not report.text:
            return replace(report, failure=MpirunFailure.ABORTED)
        return report

    def explain_abort(
        self, report: MpirunReport, stderr: Iterable[tuple[int, str]]
    ) -> MpirunReport:
        """Find MPICH's own line on MPI_Abort in the output of an instance.

        mpirun passes the error code on without a message, and only its last byte.
        """
        if report.failure not in (MpirunFailure.ABORTED, MpirunFailure.NONE):
            return report
        for rank, text in stderr:
            lines = [
                m[0] for m in re.finditer(_ABORTED, text) if int(m["rank"]) == rank
            ]
            if lines:
                return super().explain(lines[-1], 0)
        return report
