"""Open MPI, 4.1 and 5: how its mpirun is called, and what its messages mean."""

import re
from collections.abc import Mapping, Sequence

from poprun.helpers.command import REMOTE_SHELL
from poprun.mpirun.environment import without_batch_system, without_outer_mpi
from poprun.mpirun.messages import clean
from poprun.mpirun.values import (
    OPENMPI4,
    Context,
    Failure,
    Mpi,
    MpirunArguments,
    MpiVerdict,
)

# Where shared memory gets its files. They stay in /dev/shm when processes are
# killed, in a directory of the job they go with it.
_BACKING_DIRECTORIES = {
    True: (
        "OMPI_MCA_btl_vader_backing_directory",
        "OMPI_MCA_osc_rdma_backing_directory",
        "OMPI_MCA_osc_sm_backing_directory",
    ),
    False: (
        "OMPI_MCA_btl_sm_backing_directory",
        "OMPI_MCA_osc_rdma_backing_directory",
        "OMPI_MCA_osc_sm_backing_directory",
        "OMPI_MCA_osc_ucx_backing_directory",
    ),
}

# All of them lie in a directory of the job.
LEFTOVERS: Sequence[str] = ()

_ABORTED = r"(?si)MPI_ABORT was invoked on rank (\d+).*?\berror ?code:? (-?\d+)"
_CALLED_ABORT = r'(?s)process rank (\d+) .*?calling\s+"abort"'
_IMPROPER = r"(?s)due to process rank (\d+) .*?exiting\s+improperly"
# A process was killed, or exited with another code than 0.
_PROCESS_FAILED = (
    r"(?s)process rank (\d+) .*?exited\s+on\s+signal (\d+)",
    r"(?s)Process name: \[.*?,(\d+)\]\s+Exit code:\s+(-?\d+)",
)
# A daemon on another host was killed; 5.0 ends with exit code 0 then.
_DAEMON_LOST = r"has lost communication with a remote daemon"
# It connects its processes by TCP on one host, too.
_NO_INTERFACE = r"unable to find network interfaces"
_INTERFACE_HINT = (
    "Open MPI needs a network interface that is up: see 'ip link', and run 'ip link "
    "set lo up'. --mpirun local needs none."
)
# Begins and ends what mpirun has to say; lines that it only logs have none.
_RULE = r"(?m)^-{50,}$"
# mpirun counts fewer slots than processes, or does not know an option.
_NOT_STARTED = (
    r"not enough slots available|already filled",
    r"(?i)unrecognized option|unknown option",
)


def job_arguments(
    arguments: MpirunArguments, hosts: Mapping[str, int], *, as_root: bool
) -> list[str]:
    """Return mpirun's arguments that count for the whole job."""
    del hosts  # each instance names its own
    argv = ["--bind-to", "none"]
    if arguments.tag_output:
        argv.append("--tag-output")
    argv += arguments.passed_on
    if as_root or arguments.allow_run_as_root:
        argv.append("--allow-run-as-root")
    return argv


def instance_arguments(context: Context) -> list[str]:
    """Return mpirun's arguments before the argv of one instance."""
    argv = ["-np", "1"]
    if context.host is not None:
        argv += ["--host", context.host]
    for name, value in context.exports.items():
        argv += ["-x", name if value is None else f"{name}={value}"]
    return [*argv, *context.passed_on]


def environment(mpi: Mpi, caller: Mapping[str, str], directory: str) -> dict[str, str]:
    """Return mpirun's own environment.

    Args:
        directory: One that is removed with the job, better in memory than on disk:
            shared memory lives in it.
    """
    old = mpi.flavour == OPENMPI4
    variables = dict.fromkeys(_BACKING_DIRECTORIES[old], directory)
    # There may be more instances than cores: poprun has counted them already. In
    # argv this would clash with a mapping that a user asks for.
    if old:
        variables["OMPI_MCA_rmaps_base_oversubscribe"] = "1"
        # Or it looks for an ssh, which it does not need on one host.
        variables["OMPI_MCA_plm"] = "isolated"
    else:
        variables["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    # Open MPI 5 does not start for a user who has no home directory.
    variables["HOME"] = directory
    return (
        variables
        | without_batch_system(without_outer_mpi(caller))
        | {"TMPDIR": directory}
    )


def remote_environment(mpi: Mpi, subnet: str) -> dict[str, str]:
    """Return the variables by which mpirun starts its daemons on other hosts.

    It starts all of them itself: the daemons could not start others.
    """
    if mpi.flavour == OPENMPI4:
        variables = {
            "OMPI_MCA_plm": "rsh",
            "OMPI_MCA_plm_rsh_agent": REMOTE_SHELL,
            "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
            # Or it cuts names at the first dot.
            "OMPI_MCA_orte_keep_fqdn_hostnames": "1",
        }
        networks = ("OMPI_MCA_oob_tcp_if_include", "OMPI_MCA_btl_tcp_if_include")
    else:
        variables = {
            "PRTE_MCA_plm": "ssh",
            "PRTE_MCA_plm_ssh_agent": REMOTE_SHELL,
            "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        }
        networks = ("PRTE_MCA_prte_if_include", "OMPI_MCA_btl_tcp_if_include")
    return variables | (dict.fromkeys(networks, subnet) if subnet else {})


def explain(text: str, exit_code: int) -> MpiVerdict:
    """Return the reason that mpirun gives for its exit code.

    Under Open MPI 4.1 the message on MPI_Abort is lost now and then; its code is not.
    The last byte of that is the exit code, and a signal to mpirun, or a process that
    dies, never comes to exit code 0.
    """
    text = clean(text)
    # Of a job without failures it prints nothing.
    if not text:
        return _without_reason(text, exit_code)
    if match := re.search(_ABORTED, text):
        return MpiVerdict(
            failure=Failure.ABORTED, rank=int(match[1]), code=int(match[2]), text=text
        )
    if match := re.search(_CALLED_ABORT, text):
        return MpiVerdict(
            failure=Failure.ABORTED, rank=int(match[1]), code=exit_code, text=text
        )
    if match := re.search(_IMPROPER, text):
        return MpiVerdict(
            failure=Failure.NOT_FINALIZED, rank=int(match[1]), code=exit_code, text=text
        )
    reasons = (*_PROCESS_FAILED, *(_NOT_STARTED if exit_code else ()))
    if any(re.search(reason, text) for reason in reasons):
        return MpiVerdict(failure=Failure.OTHER, code=exit_code, text=text)
    if re.search(_DAEMON_LOST, text):
        return MpiVerdict(failure=Failure.DAEMON_LOST, code=exit_code, text=text)
    return _without_reason(text, exit_code)


def _without_reason(text: str, exit_code: int) -> MpiVerdict:
    if exit_code:
        hint = _INTERFACE_HINT if re.search(_NO_INTERFACE, text) else ""
        return MpiVerdict(
            failure=Failure.UNEXPLAINED, code=exit_code, text=text, hint=hint
        )
    # It says something else where it could not start a daemon on another host.
    if re.search(_RULE, text):
        return MpiVerdict(failure=Failure.NONE, code=0, text=text)
    return MpiVerdict(
        failure=Failure.NONE, code=0, text=text, if_running=Failure.ABORTED
    )
