"""Open MPI, 4 and 5: how its mpirun is called, and what its messages mean."""

import re
from collections.abc import Mapping, Sequence
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

# It connects its processes by TCP on one host, too.
_NO_INTERFACE = r"unable to find network interfaces"
_INTERFACE_HINT = (
    "Open MPI needs a network interface that is up: see 'ip link', and run 'ip link "
    "set lo up'. --mpirun local needs none."
)
# Begins and ends a message of mpirun; lines that it only logs have none.
_RULE = r"(?m)^-{50,}$"


class OpenMpi(Mpi):
    """The functions that Open MPI 4 and 5 have in common."""

    __slots__ = ()

    vendor: ClassVar[str] = "Open MPI"
    libraries: ClassVar[Sequence[str]] = ("libmpi.so.40",)
    takes_any_option: ClassVar[bool] = True
    messages: ClassVar[Sequence[tuple[str, MpirunFailure]]] = (
        (
            r"(?si)MPI_ABORT was invoked on rank (?P<rank>\d+).*?"
            r"\berror ?code:? (?P<code>-?\d+)",
            MpirunFailure.ABORTED,
        ),
        (r'(?s)process rank (?P<rank>\d+) .*?calling\s+"abort"', MpirunFailure.ABORTED),
        (
            r"(?s)process rank (?P<rank>\d+) .*?exiting\s+improperly",
            MpirunFailure.NOT_FINALIZED,
        ),
        # A process was killed, or exited with another code than 0.
        (r"(?s)process rank \d+ .*?exited\s+on\s+signal \d+", MpirunFailure.OTHER),
        (r"(?s)Process name: \[.*?,\d+\]\s+Exit code:\s+-?\d+", MpirunFailure.OTHER),
        # mpirun counts fewer slots than processes, or does not know an option.
        (r"not enough slots available|already filled", MpirunFailure.OTHER),
        (r"(?i)unrecognized option|unknown option", MpirunFailure.OTHER),
        # A daemon on another host was killed; 5.0 ends with exit code 0 then.
        (r"has lost communication with a remote daemon", MpirunFailure.DAEMON_LOST),
    )

    def job_arguments(
        self, arguments: MpirunArguments, hosts: Mapping[str, int]
    ) -> list[str]:
        del hosts  # each instance names its own
        argv = ["--bind-to", "none"]
        if arguments.tag_output:
            argv.append("--tag-output")
        argv += arguments.passed_on
        if arguments.allow_run_as_root:
            argv.append("--allow-run-as-root")
        return argv

    def instance_arguments(self, context: Context) -> list[str]:
        argv = ["-np", "1"]
        if context.host is not None:
            argv += ["--host", context.host]
        for name, value in context.exports.items():
            argv += ["-x", name if value is None else f"{name}={value}"]
        return [*argv, *context.passed_on]

    def explain(self, text: str, exit_code: int) -> MpirunReport:
        """Return the reason that mpirun gives for its exit code.

        Under Open MPI 4.1 the message on MPI_Abort is lost now and then; its code is
        not. The last byte of the code is the exit code. A signal to mpirun, or a
        process that dies, never leads to exit code 0.
        """
        report = super().explain(text, exit_code)
        if report.failure is MpirunFailure.UNEXPLAINED:
            if re.search(_NO_INTERFACE, report.text):
                return replace(report, hint=_INTERFACE_HINT)
        # It prints a message where it could not start a daemon on another host.
        elif report.failure is MpirunFailure.NONE and not re.search(_RULE, report.text):
            return replace(report, if_running=MpirunFailure.ABORTED)
        return report


class OpenMpi4(OpenMpi):
    """Open MPI 4."""

    __slots__ = ()

    launcher: ClassVar[str] = "Open MPI 4"
    version_pattern: ClassVar[str] = r"\((?:Open MPI|OpenRTE)\) (4\.\d\S*)"
    parameter_options: ClassVar[Sequence[str]] = ("mca", "gmca")
    # Shared memory has its files there. They stay in /dev/shm when processes are
    # killed; a directory of the job is removed.
    directory_variables: ClassVar[Sequence[str]] = (
        "HOME",
        "OMPI_MCA_btl_vader_backing_directory",
        "OMPI_MCA_osc_rdma_backing_directory",
        "OMPI_MCA_osc_sm_backing_directory",
    )
    defaults: ClassVar[Mapping[str, str]] = {
        # There may be more instances than cores: poprun has counted them already. In
        # argv this would clash with a mapping that a user asks for.
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        # Without this it looks for an ssh, which it does not need on one host.
        "OMPI_MCA_plm": "isolated",
    }
    # mpirun starts all daemons itself: the daemons could not start others.
    remote_variables: ClassVar[Mapping[str, str]] = {
        "OMPI_MCA_plm": "rsh",
        "OMPI_MCA_plm_rsh_agent": REMOTE_SHELL,
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        # Without this it cuts names at the first dot.
        "OMPI_MCA_orte_keep_fqdn_hostnames": "1",
    }
    network_variables: ClassVar[Sequence[str]] = (
        "OMPI_MCA_oob_tcp_if_include",
        "OMPI_MCA_btl_tcp_if_include",
    )


class OpenMpi5(OpenMpi):
    """Open MPI 5 and newer. The variables do the same as Open MPI 4's."""

    __slots__ = ()

    launcher: ClassVar[str] = "Open MPI 5"
    version_pattern: ClassVar[str] = r"\((?:Open MPI|OpenRTE)\) (\d+\.\d\S*)"
    parameter_options: ClassVar[Sequence[str]] = (
        *("mca", "gmca", "prtemca", "pmixmca", "gpmixmca"),
    )
    # It does not start for a user who has no home directory.
    needs_home: ClassVar[bool] = True
    directory_variables: ClassVar[Sequence[str]] = (
        "HOME",
        "OMPI_MCA_btl_sm_backing_directory",
        "OMPI_MCA_osc_rdma_backing_directory",
        "OMPI_MCA_osc_sm_backing_directory",
        "OMPI_MCA_osc_ucx_backing_directory",
    )
    defaults: ClassVar[Mapping[str, str]] = {
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"
    }
    remote_variables: ClassVar[Mapping[str, str]] = {
        "PRTE_MCA_plm": "ssh",
        "PRTE_MCA_plm_ssh_agent": REMOTE_SHELL,
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
    }
    network_variables: ClassVar[Sequence[str]] = (
        "PRTE_MCA_prte_if_include",
        "OMPI_MCA_btl_tcp_if_include",
    )
