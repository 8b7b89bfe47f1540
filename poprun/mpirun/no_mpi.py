"""poprun's own launcher, in the place of an mpirun: how it is called."""

from collections.abc import Mapping, Sequence

from poprun.helpers.command import REMOTE_SHELL
from poprun.mpirun.environment import without_outer_mpi
from poprun.mpirun.messages import clean
from poprun.mpirun.values import (
    LOCAL,
    Context,
    Failure,
    Mpi,
    MpirunArguments,
    MpiVerdict,
)

LEFTOVERS: Sequence[str] = ()


def launcher(argv: Sequence[str], version: str) -> Mpi:
    """Describe the launcher that this argv starts as if it were an MPI."""
    path, *leading = argv
    title = "poprun's own launcher"
    return Mpi(
        path=path,
        flavour=LOCAL,
        vendor=title,
        version=version,
        leading_arguments=tuple(leading),
    )


def job_arguments(
    arguments: MpirunArguments, hosts: Mapping[str, int], *, as_root: bool
) -> list[str]:
    """Return nothing: the launcher has no options."""
    del arguments, hosts, as_root
    return []


def instance_arguments(context: Context) -> list[str]:
    """Return what starts an instance on another host, or nothing.

    python entry.py local shim 0 : remote_shell node-1 shim 1

    An instance gets its variables by the control channel.
    """
    return [] if context.host is None else [REMOTE_SHELL, context.host]


def environment(mpi: Mpi, caller: Mapping[str, str], directory: str) -> dict[str, str]:
    """Return the launcher's own environment."""
    del mpi
    return without_outer_mpi(caller) | {"TMPDIR": directory}


def remote_environment(mpi: Mpi, subnet: str) -> dict[str, str]:
    """Return no variables: each shim is started by a remote shell."""
    del mpi, subnet
    return {}


def explain(text: str, exit_code: int) -> MpiVerdict:
    """Return what is known, which is the code, and whether a process has failed."""
    failure = Failure.UNEXPLAINED if exit_code else Failure.NONE
    if exit_code and "the local launcher ends the others" in text:
        failure = Failure.OTHER
    return MpiVerdict(failure=failure, code=exit_code, text=clean(text))
