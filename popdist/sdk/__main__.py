"""The command `python -m popdist.sdk`: programs and environments with the stand-ins."""

import os
import runpy
import sys
from collections.abc import Sequence

from popdist import sdk
from popdist.sdk import switch

NAME = "python -m popdist.sdk"
# The exit code of a mistake in the arguments, as of most commands.
INVALID = 2
USAGE = """\
usage: python -m popdist.sdk PROGRAM [ARGUMENTS]...
       python -m popdist.sdk -m MODULE [ARGUMENTS]...
       python -m popdist.sdk enable | disable | status

Run a program that can import popdist's stand-ins for poptorch, horovod, popart and
tensorflow.python.ipu; or enable them for all programs of this Python environment,
disable them, or show which it is.
What is installed is imported instead of a stand-in.
"""
COMMANDS = {"enable": switch.enable, "disable": switch.disable, "status": switch.status}


def main(argv: Sequence[str]) -> None:
    """Run the program, or carry out the command, that the arguments name."""
    first = argv[0] if argv else ""
    if first in ("-h", "--help"):
        print(USAGE, end="")
    elif first in COMMANDS:
        if len(argv) > 1:
            refuse(f"{first} takes no arguments. A program of that name is ./{first}.")
        try:
            print(COMMANDS[first]())
        except switch.SwitchError as error:
            sys.exit(f"{NAME}: error: {error}")
    elif first == "-m" and len(argv) > 1:
        run_module(argv[1:])
    elif not first or first.startswith("-"):
        refuse(f"{first} is no option." if first else "There is no program to run.")
    elif not os.path.exists(first):
        refuse(f"There is no program {first!r}.")
    else:
        run_program(argv)


def refuse(reason: str) -> None:
    """End with an error about the arguments."""
    print(
        f"{NAME}: error: {reason}\n{NAME}: hint: {NAME} --help lists the commands.",
        file=sys.stderr,
    )
    sys.exit(INVALID)


def run_program(argv: Sequence[str]) -> None:
    """Run a script, as `python SCRIPT ARGUMENTS...` does."""
    sdk.install()
    sys.argv[:] = argv
    # In place of the current directory.
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(argv[0]))
    runpy.run_path(argv[0], run_name="__main__")


def run_module(argv: Sequence[str]) -> None:
    """Run a module, as `python -m MODULE ARGUMENTS...` does."""
    sdk.install()
    sys.argv[:] = argv
    runpy.run_module(argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
