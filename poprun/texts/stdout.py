"""Writes the texts that poprun and the other commands print to stdout."""

import os
import sys
from typing import TextIO


class OutputError(Exception):
    """The standard output cannot be written. click would end the process on OSError."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause.strerror or str(cause))
        self.is_closed_by_reader = isinstance(cause, BrokenPipeError)


def write(text: str) -> None:
    """Write a text to stdout.

    Raises:
        OutputError: It cannot be written, or its reader has closed it.
    """
    try:
        write_stdout(text)
    except OSError as error:
        raise OutputError(error) from error


def write_stdout(text: str) -> None:
    """Write a text to stdout, whatever the locale.

    Raises:
        OSError: It cannot be written, or stdout is closed.
    """
    if sys.stdout is None:
        raise OSError("it is closed")
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


def discard_unwritten(stream: TextIO | None) -> None:
    """Discard what is in a stream's buffer: writing it again would fail at the end."""
    if stream is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
