"""poprun's own launcher, in the place of an mpirun: how it is called."""

from collections.abc import Mapping, Sequence

from poprun.mpirun.environment import without_outer_mpi
from poprun.mpirun.messages import clean
from poprun.mpirun.values import (
    LOCAL,
    Context,
    Failure,
    GlobalArguments,
    Mpi,
    MpiVerdict,
)

LEFTOVERS: Sequence[str] = ()


def launcher(words: Sequence[str], version: str) -> Mpi:
    """Describe the launcher that these words start as if it were an MPI."""
    return Mpi(
        path=words[0],
        words=tuple(words[1:]),
        flavour=LOCAL,
        vendor="poprun's own launcher",
        version=version,
    )


def command(
    mpi: Mpi,
    arguments: GlobalArguments,
    contexts: Sequence[Context],
    *,
    as_root: bool,
) -> list[str]:
    """Return the command that starts each context as one process.

    python entry.py local shim 0 : shim 1

    There is no word for variables: an instance gets its own by the control channel.
    """
    del arguments, as_root
    words = [mpi.path, *mpi.words]
    for context in contexts:
        words += [*context.words, ":"]
    return words[:-1]


def environment(mpi: Mpi, caller: Mapping[str, str], directory: str) -> dict[str, str]:
    """Return the launcher's own environment."""
    del mpi
    return without_outer_mpi(caller) | {"TMPDIR": directory}


def explain(text: str, exit_code: int) -> MpiVerdict:
    """Return what is known, which is the code: this launcher says nothing."""
    failure = Failure.UNEXPLAINED if exit_code else Failure.NONE
    return MpiVerdict(failure=failure, code=exit_code, text=clean(text))
