"""`popctl logs`: what the instances of a job have written to its files so far."""

import os
from collections import deque
from typing import Any

import click

from poprun.errors import JobRequestError
from poprun.popctl.jobs import choose_job, show_job, words_of
from poprun.popctl.output import write_bytes
from poprun.stdio.output_files import path_of
from poprun.stdio.stream_ends import STREAMS


@click.command("logs")
@click.argument("words", nargs=-1, metavar="[JOB] [INSTANCE]")
@click.option(
    "--lines",
    "-n",
    type=click.IntRange(min=0),
    metavar="N",
    help="Only the last N lines of each file.",
)
def command(words: tuple[str, ...], lines: int | None) -> None:
    """Write what the instances, or one, have written to the files of the job so far.

    JOB is the beginning of an id that `popctl ps` shows, and may be left out if there
    is one job only. Each file has a head, `==> FILE <==`; empty files are left out.
    """
    word, instance = words_of(words, needs_instance=False)
    job = show_job(choose_job(word))
    directory = job["output_directory"]
    if directory is None:
        raise JobRequestError(
            f"Job {job['id'][:8]} writes no files: start it with --log-dir "
            "DIRECTORY. 'popctl attach' shows what an instance writes from now on."
        )
    if not os.path.isdir(directory):
        raise JobRequestError(
            f"The files of job {job['id'][:8]} are in {directory}, which popctl cannot "
            "find: it was removed, or its name is not UTF-8. Read the files there."
        )
    number = job["num_instances"]
    if instance is not None and instance >= number:
        raise JobRequestError(
            f"There is no instance {instance} in the job: it has 0 to {number - 1}."
        )
    ranks = range(number) if instance is None else [instance]
    for rank in ranks:
        for stream in STREAMS:
            _write_file(path_of(directory, rank, stream), lines)


def _write_file(path: str, lines: int | None) -> None:
    try:
        with open(path, "rb") as file:
            head = f"==> {path} <==\n".encode(errors="surrogateescape")
            content: Any = file if lines is None else deque(file, lines)
            is_first = True
            for line in content:
                if is_first:
                    write_bytes(1, head)
                    is_first = False
                write_bytes(1, line)
            if not is_first and not line.endswith(b"\n"):
                write_bytes(1, b"\n")
    except FileNotFoundError:
        return  # the stream has not been opened yet
    except OSError as error:
        raise JobRequestError(f"{path} cannot be read: {error.strerror}.") from None
