"""Questions to mpirun itself in --mpi-global-args: for its version or its help."""

import subprocess
from collections.abc import Mapping, Sequence

from poprun.mpirun.environment import without_outer_mpi
from poprun.mpirun.find import find_mpirun
from poprun.mpirun.option_table import GLOBAL_ARGS, QUESTIONS
from poprun.mpirun.tokens import split_arguments


def find_question(text: str) -> list[str]:
    """Return the words that ask mpirun for its version or help; none without such.

    Args:
        text: The arguments for mpirun as a whole.

    Raises:
        MpiArgumentError: This is no list of options.
    """
    for argument in split_arguments(text, GLOBAL_ARGS):
        if argument.name in QUESTIONS:
            return [argument.flag, *argument.values]
    return []


def answer(
    question: Sequence[str], mpirun: str | None, environ: Mapping[str, str]
) -> tuple[str, int]:
    """Return what mpirun prints, and its exit code.

    Args:
        mpirun: The value of --mpirun.

    Raises:
        MpiNotFoundError: There is none.
    """
    mpi = find_mpirun(mpirun, environ)
    if not mpi.has_mpi:
        return f"{mpi.title}\n", 0
    # Open MPI 5 answers no user without a home directory.
    ran = subprocess.run(
        [mpi.path, *question],
        env={"HOME": "/"} | without_outer_mpi(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return ran.stdout.decode(errors="replace"), ran.returncode
