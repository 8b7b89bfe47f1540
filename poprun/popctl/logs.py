"""`popctl logs`: what the instances of a job have written to its files so far."""

import os

import click

from poprun.errors import JobRequestError
from poprun.output.output_files import path_of
from poprun.output.stream_ends import STREAMS
from poprun.popctl.jobs import SHOWN, choose_job, job_and_instance, show_job
from poprun.popctl.output import write_bytes

# A line may be longer than the memory.
PIECE = 1 << 16


@click.command(
    "logs", short_help="Print the files that a job has written its output to."
)
@click.argument("arguments", nargs=-1, metavar="[JOB] [INSTANCE]")
@click.option(
    "--lines",
    "-n",
    type=click.IntRange(min=0),
    metavar="N",
    help="Print only the last N lines of each file.",
)
def command(arguments: tuple[str, ...], lines: int | None) -> None:
    """Print what the instances, or one of them, have written to files so far.

    JOB is the beginning of an id that `popctl ps` shows. It can be left out if only one
    job is running. Each file has a heading, `==> FILE <==`; empty files are left
    out.
    """
    prefix, instance = job_and_instance(arguments, needs_instance=False)
    job = show_job(choose_job(prefix))
    name, directory = job["id"][:SHOWN], job["output_directory"]
    if job["phase"] == "preparing":
        raise JobRequestError(f"Job {name} has not started any instance yet.")
    if directory is None:
        raise JobRequestError(
            f"Job {name} does not write its output to files: that needs --log-dir "
            "DIRECTORY. 'popctl attach' shows what an instance writes from now on."
        )
    if not os.path.isdir(directory):
        raise JobRequestError(
            f"The files of job {name} are in {directory}, which popctl "
            "cannot find: the directory was removed, or its name is not UTF-8."
        )
    number = job["num_instances"]
    if instance is not None and instance >= number:
        raise JobRequestError(
            f"The job has no instance {instance}: its instances are 0 to {number - 1}."
        )
    ranks = range(number) if instance is None else [instance]
    for rank in ranks:
        for stream in STREAMS:
            _write_file(path_of(directory, rank, stream), lines)


def _write_file(path: str, lines: int | None) -> None:
    """Write what a file has now, with a head; a job may write on meanwhile."""
    try:
        with open(path, "rb", buffering=0) as file:
            end = os.fstat(file.fileno()).st_size
            at = 0 if lines is None else begin_of_last(file.fileno(), end, lines)
            if at == end:
                return
            write_bytes(1, f"==> {path} <==\n".encode(errors="surrogateescape"))
            piece = b""
            while at < end and (
                data := os.pread(file.fileno(), min(PIECE, end - at), at)
            ):
                write_bytes(1, piece := data)
                at += len(data)
            if not piece.endswith(b"\n"):
                write_bytes(1, b"\n")
    except FileNotFoundError:
        return  # the stream has not been opened yet
    except OSError as error:
        raise JobRequestError(f"{path} cannot be read: {error.strerror}.") from None


def begin_of_last(descriptor: int, end: int, lines: int) -> int:
    """Return where the last lines of a file begin, reading from its end."""
    if not lines:
        return end
    at, missing = end, lines
    while at:
        begin = max(0, at - PIECE)
        piece = os.pread(descriptor, at - begin, begin)
        # A newline at the end of the file ends the last line.
        place = len(piece) - (at == end and piece.endswith(b"\n"))
        while (place := piece.rfind(b"\n", 0, place)) >= 0:
            missing -= 1
            if not missing:
                return begin + place + 1
        at = begin
    return 0
