"""Prints the plan or the topology to stdout, before a job or instead of one."""

import errno
import os

from poprun.errors import OUTPUT_CLOSED, UNWRITTEN
from poprun.log import Log
from poprun.stdio.writer import write_text


def print_text(text: str, log: Log) -> int:
    """Write a text to stdout, and return the exit code that follows from it."""
    failure = write_text(1, text)
    if not failure:
        return 0
    if failure == errno.EPIPE:
        return OUTPUT_CLOSED
    log.error(f"The standard output cannot be written: {os.strerror(failure)}.")
    return UNWRITTEN
