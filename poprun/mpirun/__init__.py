"""A plan -> mpirun's argv, and its messages -> what failed: one file for each MPI."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from poprun.mpirun import hydra, no_mpi, openmpi
from poprun.mpirun.values import (
    HYDRA,
    LOCAL,
    Context,
    Failure,
    Mpi,
    MpirunArguments,
    MpiVerdict,
)


class Adapter(Protocol):
    """The functions of the module for each MPI."""

    # The prefixes of paths of files that stay when processes are killed, because no
    # setting moves them to a directory of the job. The job's name is not in them.
    LEFTOVERS: Sequence[str]

    def job_arguments(
        self, arguments: MpirunArguments, hosts: Mapping[str, int], *, as_root: bool
    ) -> list[str]:
        """Return mpirun's arguments that count for the whole job.

        Args:
            hosts: How many instances each host gets; nothing if all are here.
        """

    def instance_arguments(self, context: Context) -> list[str]: ...

    def environment(
        self, mpi: Mpi, caller: Mapping[str, str], directory: str
    ) -> dict[str, str]: ...

    def remote_environment(self, mpi: Mpi, subnet: str) -> dict[str, str]:
        """Return the variables by which mpirun starts processes on other hosts.

        Args:
            subnet: The network between the hosts, "" if it is not known.
        """

    def explain(self, text: str, exit_code: int) -> MpiVerdict: ...


def adapter(flavour: str) -> Adapter:
    """Return the module for this kind of mpirun, and import no other."""
    if flavour == HYDRA:
        return hydra
    if flavour == LOCAL:
        return no_mpi
    return openmpi


def command(
    mpi: Mpi, arguments: MpirunArguments, contexts: Sequence[Context], *, as_root: bool
) -> list[str]:
    """Return the command that starts each context as one process.

    mpirun --bind-to none --tag-output -np 1 -x A=0 shim 0 : -np 1 -x A=1 shim 1
    """
    module = adapter(mpi.flavour)
    hosts: dict[str, int] = {}
    for context in contexts:
        if context.host is not None:
            hosts[context.host] = hosts.get(context.host, 0) + 1
    job_arguments = module.job_arguments(arguments, hosts, as_root=as_root)
    argv = [mpi.path, *mpi.leading_arguments, *job_arguments]
    for context in contexts:
        argv += [*module.instance_arguments(context), *context.argv, ":"]
    return argv[:-1]


def explain_abort(
    mpi: Mpi, verdict: MpiVerdict, stderr: Iterable[tuple[int, str]]
) -> MpiVerdict:
    """Return a verdict with the reason of MPI_Abort that only an instance prints.

    Args:
        stderr: The rank of each instance, and the end of its stderr.
    """
    may_be_abort = verdict.failure in (Failure.ABORTED, Failure.NONE)
    if mpi.flavour != HYDRA or not may_be_abort:
        return verdict

    explained = (hydra.explain_abort(text, rank) for rank, text in stderr)
    return next(filter(None, explained), verdict)
