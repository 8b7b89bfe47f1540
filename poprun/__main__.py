"""The entry point: handles signals before anything that takes time is imported."""

import gc
import os
import sys

from poprun import early_signals

# The name is the type checker's: importing typing would take milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

# Python looks for garbage after every 700 new objects. Imported objects are no garbage,
# and the search takes a twentieth of a launch.
_OBJECTS_BEFORE_GARBAGE = 100_000

# STATE: the file that gets the exit code, too; "" for none.
_exit_code_file = ""


def main(exit_code_file: str = "") -> "NoReturn":
    """Run poprun, and end this process with its exit code.

    Args:
        exit_code_file: Gets the exit code, too, for a Python program that has called
            poprun; "" for no file.
    """
    global _exit_code_file
    caller_interrupt = 0
    if exit_code_file:
        from poprun.helpers.own_process import CALLER_INTERRUPT

        _exit_code_file, caller_interrupt = exit_code_file, CALLER_INTERRUPT
    early_signals.block_until_options_are_read(_exit, caller_interrupt)
    _open_closed_streams()
    gc.set_threshold(_OBJECTS_BEFORE_GARBAGE)

    from poprun import cli

    code = cli.main()
    early_signals.ignore()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    _exit(code)


def _exit(code: int) -> "NoReturn":
    """End this process at once: Python's own cleanup takes a tenth of a launch."""
    try:
        if _exit_code_file:
            with open(_exit_code_file, "w") as file:
                file.write(str(code))
    finally:  # also when the reader of the file is gone
        os._exit(code)


def _open_closed_streams() -> None:
    # Without this, another file would get the number of a standard stream. os.open()
    # returns the lowest free number. Writing to stdout fails, as to a closed stdout.
    for number, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)


if __name__ == "__main__":
    main()
