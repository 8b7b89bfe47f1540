"""The entry point: makes Ctrl-C quiet before anything that takes time is imported."""

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Run poprun, and return its exit code."""
    _open_what_is_closed()
    # Only in place of Python's own handler: a caller who ignores Ctrl-C, as the
    # shell does for background jobs, means it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)

    from poprun import cli

    return cli.main()


def _open_what_is_closed() -> None:
    # Or another file would get the number of a standard stream, and be taken for it.
    # What opens it gets the lowest number that is free. Writing to stdout fails, as
    # it does where it is closed.
    for number, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)


def _interrupted(number: int, frame: FrameType | None) -> None:
    # Nothing has been started, so there is nothing to undo, and an exception might
    # come up inside an import.
    os.write(2, b"poprun: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
