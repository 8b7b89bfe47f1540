"""Writes the texts that the commands poprun, vipu and vipu-admin print to stdout."""

import os
import sys

from poprun.annotations import TextIO


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
