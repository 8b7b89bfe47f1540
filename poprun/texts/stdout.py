"""Writes texts to stdout, and poprun's own sentences to stderr."""

import os
import sys
from typing import TextIO

from poprun.color import message
from poprun.errors import OUTPUT_CLOSED, UNWRITTEN


class OutputError(Exception):
    """The standard output cannot be written. click would end the process on OSError."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause.strerror or str(cause))
        self.is_closed_by_reader = isinstance(cause, BrokenPipeError)


def write(text: str) -> None:
    """Write a text to stdout, whatever the locale.

    Raises:
        OutputError: It cannot be written, or its reader has closed it.
    """
    try:
        if sys.stdout is None:
            raise OSError("it is closed")
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except OSError as error:
        raise OutputError(error) from error


def print_text(text: str) -> int:
    """Write a text of poprun to stdout, and return the exit code."""
    try:
        write(text)
    except OutputError as error:
        discard_unwritten(sys.stdout)
        if error.is_closed_by_reader:
            return OUTPUT_CLOSED
        report("error", f"The standard output cannot be written: {error}.")
        return UNWRITTEN
    return 0


def report(kind: str, text: str, *, has_color: bool = False) -> None:
    """Write an error, a warning or a hint of poprun to stderr."""
    write_error(message(kind, text, has_color=has_color))


def write_error(text: str) -> None:
    """Write a text to stderr."""
    if sys.stderr is None:  # print(file=None) would write to stdout
        return
    try:
        print(text, end="", file=sys.stderr, flush=True)
    except OSError:  # no other stream to report it on; the exit code remains
        discard_unwritten(sys.stderr)


def discard_unwritten(stream: TextIO | None) -> None:
    """Empty a stream's buffer: writing it again would fail at the end."""
    if stream is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
