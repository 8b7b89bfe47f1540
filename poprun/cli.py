"""The command: argv and environment -> a page of text, or a job.

grammar parses argv, because click has other rules for prefixes, for values that look
like options, and for the arguments of the program. click completes command lines in a
shell; a job does without it.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from poprun import __version__, early_signals
from poprun.color import uses_color
from poprun.errors import OptionError, PoprunError
from poprun.texts.stdout import print_text, report, write_error

if TYPE_CHECKING:
    from poprun.options.grammar import Given

_COMPLETION = "_POPRUN_COMPLETE"


def main(
    argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None
) -> int:
    """Carry out a command line, and return poprun's exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    environ = os.environ if environ is None else environ
    options: list[Given] = []
    try:
        if instruction := environ.get(_COMPLETION):
            from poprun.options.completion import answer_shell

            return print_text(answer_shell(_COMPLETION, instruction))
        # Scripts call this often: it takes the shortest way.
        if argv == ["--version"]:
            return print_text(f"poprun {__version__}\n")
        if argv == ["help"]:
            return print_text(_topics(environ, options))
        return _carry_out(argv, environ, options)
    except PoprunError as error:
        has_color = _has_color(options, environ, 2)
        report("error", str(error), has_color=has_color)
        for hint in error.hints:
            report("hint", hint, has_color=has_color)
        return error.exit_code


def _carry_out(
    argv: Sequence[str], environ: Mapping[str, str], options: "list[Given]"
) -> int:
    """Carry out a command line other than the shortest ones.

    Args:
        options: Gets the options, even if an error follows.
    """
    if not argv:
        from poprun.options.help import SHORT_PAGE, painted

        has_color = _has_color(options, environ, 2)
        write_error(painted(SHORT_PAGE) if has_color else SHORT_PAGE)
        return OptionError.exit_code

    from poprun.options import grammar

    line = grammar.CommandLine()
    try:
        line = grammar.parse(argv, options)
        # Help comes before the checks of all other options.
        if line.asks_for_help:
            topics = line.program == ("topics",)
            page = (_topics if topics else _help)(environ, options)
            return print_text(page)

        from poprun import dispatch

        return dispatch.carry_out(line, argv, environ)
    except PoprunError as error:
        from poprun import dispatch

        # An error of the grammar has the user's names already, and the line no options.
        error.args = (grammar.with_typed_names(str(error), line.options),)
        hints = [grammar.with_typed_names(hint, line.options) for hint in error.hints]
        error.hints[:] = hints
        dispatch.record_refusal(line.words, options, environ, error)
        raise


def _has_color(
    options: "Sequence[Given]", environ: Mapping[str, str], descriptor: int
) -> bool:
    """Return whether a descriptor gets text with colours.

    Args:
        options: The options before an error, if the command line is wrong.
    """
    from poprun.options.grammar import text_given

    choice = text_given("color", options, environ).lower()
    return uses_color(choice, environ, descriptor)


def _help(environ: Mapping[str, str], options: "Sequence[Given]") -> str:
    from poprun.options.help import full_page, painted
    from poprun.output.terminal import own_size

    columns = environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit():
        width = int(columns[:6])
    else:
        # In a pipe to a pager, stderr has the terminal.
        width = own_size()[1]
    page = full_page(min(max(width, 60), 100))
    return painted(page) if _has_color(options, environ, 1) else page


def _topics(environ: Mapping[str, str], options: "Sequence[Given]") -> str:
    from poprun.options.help import painted
    from poprun.options.topics import topics_page

    # It starts man, which inherits the blocked signals.
    early_signals.unblock()
    page = topics_page(environ)
    return painted(page) if _has_color(options, environ, 1) else page
