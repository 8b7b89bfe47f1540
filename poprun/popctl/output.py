"""Writes JSON, popctl's own messages, and the output of instances that a job sends."""

import json
import os
import shutil
import sys

from poprun.errors import JobRequestError
from poprun.popctl.jobs import ANSWER_S, JobConnection, explain_end
from poprun.texts.stdout import OutputError, write
from poprun.wire import protocol
from poprun.words import counted, printable

DESCRIPTORS = {b"stdout": 1, b"stderr": 2}


def copy_output(job: JobConnection, greeting: str = "") -> None:
    """Write the output of instances until the job sends no more.

    Args:
        greeting: A line for stderr once the request is accepted.

    Raises:
        JobRequestError: The job refuses, or is lost.
        OutputError: popctl's own output cannot be written.
    """
    message = job.receive(ANSWER_S)
    while message is not None:
        kind, fields = message
        if kind == protocol.REQUEST_ACCEPTED and greeting:
            say(greeting)
        elif kind == protocol.INSTANCE_OUTPUT:
            write_bytes(DESCRIPTORS[fields[0]], fields[1])
        elif kind == protocol.OUTPUT_DROPPED:
            size = counted(int(fields[0]), "byte")
            say(f"{size} left out here, because popctl's output was read too slowly.")
        elif kind == protocol.REQUEST_DONE:
            if fields[0]:
                say(fields[0].decode(errors="replace"))
            return
        elif kind == protocol.JOB_ENDED:
            say(explain_end(job, message))
            return
        elif kind == protocol.REQUEST_REFUSED:
            break
        message = job.receive(None)
    raise JobRequestError(explain_end(job, message))


def say(sentence: str) -> None:
    """Write a line of popctl's own to stderr."""
    if sys.stderr is not None:  # print would take stdout then
        print(f"popctl: {printable(sentence)}", file=sys.stderr, flush=True)


def write_json(value: object) -> None:
    """Write a value as JSON to stdout."""
    write(json.dumps(value, indent=2) + "\n")


def output_width() -> int:
    """Return the columns of the terminal that stdout is, 0 if it is none."""
    if sys.stdout is None or not sys.stdout.isatty():
        return 0
    return shutil.get_terminal_size().columns


def write_bytes(descriptor: int, data: bytes) -> None:
    """Write data to stdout or stderr.

    Raises:
        OutputError: It cannot be written.
    """
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError as error:
        raise OutputError(error) from None
