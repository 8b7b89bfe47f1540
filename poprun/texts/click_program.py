"""Carries out a click command, and turns its errors into sentences and exit codes."""

import json
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any

import click

from popdist.durations import EXAMPLES, read_duration
from poprun.errors import INVALID, OUTPUT_CLOSED, UNWRITTEN, PoprunError
from poprun.texts.stdout import OutputError, discard_unwritten, write, write_error
from poprun.words import printable

# The options for which click itself writes a page.
_PAGES = {"-h", "--help", "--version"}


class Seconds(click.FloatRange):
    """A duration in seconds, in a range."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        seconds = read_duration(value) if isinstance(value, str) else value
        if seconds is None:
            self.fail(
                f"{value!r} is neither a number of seconds nor a duration such as "
                f"{EXAMPLES}.",
                param,
                ctx,
            )
        return super().convert(seconds, param, ctx)


def carry_out(
    command: click.Command,
    name: str,
    argv: Sequence[str] | None,
    *,
    obj: object = None,
    code_of: Callable[[PoprunError], int] = attrgetter("exit_code"),
) -> int:
    """Carry out a command line, and return the exit code.

    Args:
        name: The command's, which begins its messages.
        argv: By default the words after the name of this process.
        obj: The object in the context of the subcommands.
        code_of: Returns the exit code of an error, and may add hints to it.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    hints: Sequence[str] = ()
    try:
        result = command.main(arguments, prog_name=name, standalone_mode=False, obj=obj)
    except click.exceptions.NoArgsIsHelpError as error:
        write_error(error.format_message() + "\n")
        return INVALID
    except click.UsageError as error:
        sentence, code = error.format_message(), INVALID
    except PoprunError as error:
        code = code_of(error)
        sentence, hints = str(error), error.hints
    except (click.Abort, KeyboardInterrupt):
        return 128 + signal.SIGINT
    except (OSError, OutputError) as error:
        if isinstance(error, OSError):
            if _PAGES.isdisjoint(arguments):
                raise
            error = OutputError(error)
        discard_unwritten(sys.stdout)
        if error.is_closed_by_reader:
            return OUTPUT_CLOSED
        sentence, code = f"The output cannot be written: {error}.", UNWRITTEN
    else:
        # click returns the exit code of --help, and what a subcommand returns.
        return result if isinstance(result, int) else 0
    _report(name, sentence, code, hints, as_json="--json" in arguments)
    return code


def _report(
    name: str, sentence: str, code: int, hints: Sequence[str], *, as_json: bool
) -> None:
    """Report an error on stderr.

    Args:
        as_json: On stdout, too, for a program that reads JSON there.
    """
    if as_json and code != UNWRITTEN:
        value = {"version": 1, "error": sentence, "exit_code": code}
        with suppress(OutputError):
            write(json.dumps({**value, "hints": list(hints)}, indent=2) + "\n")
    write_error(f"{name}: error: {printable(sentence)}\n")
    for hint in hints:
        write_error(f"{name}: hint: {printable(hint)}\n")
