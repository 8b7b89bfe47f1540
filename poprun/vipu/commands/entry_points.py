"""The entry points of `vipu` and `vipu-admin`: errors become exit codes."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from functools import partial

import click

from poprun.errors import INVALID, OUTPUT_CLOSED, UNWRITTEN, PoprunError
from poprun.log import printable
from poprun.stdout import discard_unwritten
from poprun.vipu.commands.programs import make_program
from poprun.vipu.commands.session import OutputError, Session
from poprun.vipu.errors import InventoryBusyError

# For a request that is valid, but failed.
_FAILED = 1


def _run(
    name: str,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> int:
    session = Session(name, os.environ if environ is None else environ)
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        result = make_program(name).main(
            arguments, prog_name=name, standalone_mode=False, obj=session
        )
    except click.exceptions.NoArgsIsHelpError as error:
        _report(error.format_message() + "\n")
        return INVALID
    except click.UsageError as error:
        return _refuse(name, error.format_message(), INVALID)
    except PoprunError as error:
        code = INVALID if error.exit_code == INVALID else _FAILED
        if isinstance(error, InventoryBusyError) and session.find_server() is None:
            error.add_note("--api-timeout SECONDS waits longer.")
        return _refuse(name, str(error), code, getattr(error, "__notes__", ()))
    except (click.Abort, KeyboardInterrupt):
        return 128 + signal.SIGINT
    except OutputError as error:
        discard_unwritten(sys.stdout)
        if error.is_closed_by_reader:
            return OUTPUT_CLOSED
        return _refuse(name, f"The output cannot be written: {error}.", UNWRITTEN)
    # click returns the exit code of --help and its kin, and what a callback returns.
    return result if isinstance(result, int) else 0


def _refuse(name: str, sentence: str, code: int, hints: Sequence[str] = ()) -> int:
    _report(f"{name}: error: {printable(sentence)}\n")
    for hint in hints:
        _report(f"{name}: hint: {printable(hint)}\n")
    return code


def _report(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(text)


# Each carries out a command line, and returns its exit code.
vipu = partial(_run, "vipu")
vipu_admin = partial(_run, "vipu-admin")
