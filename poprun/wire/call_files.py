"""The files of poprun.launch: the function that instances call, and their results.

They are files in memory of the program that has called poprun. On other hosts they are
files in the job's directory, which the agents create and send back.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

# In poprun's environment: the PID of the caller, and the paths of the files.
VARIABLE = "_POPRUN_CALL_FILES"
CALL = "call"
# How much of a result an agent sends at once.
PIECE = 1 << 20


def result_name(rank: int) -> str:
    return f"result-{rank}"


def call_files(environ: Mapping[str, str]) -> list[str]:
    """Return the paths of the function and of each result; none without a function.

    Instances inherit the variable, but a poprun that they start has another parent.
    """
    caller, *paths = environ.get(VARIABLE, "").split() or [""]
    return paths if caller == str(os.getppid()) else []


def read_call(environ: Mapping[str, str]) -> bytes:
    """Return the function as bytes, nothing without a function."""
    for path in call_files(environ)[:1]:
        with open(path, "rb") as file:
            return file.read()
    return b""


def write_results(environ: Mapping[str, str], results: Mapping[int, bytes]) -> None:
    """Write results from other hosts to the caller's files."""
    _, *paths = call_files(environ) or [""]
    for rank, data in results.items():
        if rank < len(paths):
            with open(paths[rank], "wb") as file:
                file.write(data)


def result_pieces(directory: str, ranks: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """Yield the results in the directory of a job, in pieces."""
    for rank in ranks:
        path = os.path.join(directory, result_name(rank))
        # There is none if the instance has not returned.
        with suppress(OSError), open(path, "rb") as file:
            while piece := file.read(PIECE):
                yield rank, piece
