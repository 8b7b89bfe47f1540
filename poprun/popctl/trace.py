"""`popctl trace`: show the waits in a job, from the file of --trace."""

import json
import os
import sys

import click

from poprun.errors import OptionError
from poprun.texts.stdout import write
from poprun.trace.analysis import TraceError, TraceSummary, analyse
from poprun.trace.page import as_page
from poprun.trace.replaced_file import replaced_file
from poprun.trace.summary_tables import as_text


@click.command("trace", short_help="Show who waited for whom in a job with --trace.")
@click.argument("file", type=click.Path())
@click.option(
    "--html",
    metavar="PAGE",
    help="Write an HTML page to this file instead (- for stdout). It can be "
    "viewed offline.",
)
@click.option(
    "--calls",
    metavar="N",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="How many of the calls with the longest waits to show.",
)
def command(file: str, html: str | None, calls: int) -> None:
    """Show who waited for whom in a job that ran with poprun --trace FILE.

    FILE may be - for stdin.
    """
    summary = _read(file)
    if html is None:
        write(as_text(summary, calls))
        return
    name = "stdin" if file == "-" else os.path.basename(file)
    page = as_page(summary, f"Trace of poprun: {name}")
    if html == "-":
        write(page)
        return
    path = os.path.realpath(html)
    is_file = os.path.isfile(path) or not os.path.exists(path)
    try:
        # A file has its former contents after an error. Others are pipes or terminals.
        with replaced_file(path) if is_file else open(path, "wb") as opened:
            opened.write(page.encode(errors="backslashreplace"))
    except OSError as error:
        raise OptionError(
            f"--html {html!r} cannot be written: {error.strerror}."
        ) from None


def _read(file: str) -> TraceSummary:
    """Return the summary of a trace.

    Raises:
        OptionError: The file cannot be read, or is not a trace of poprun.
    """
    try:
        is_stdin = file == "-"
        source = sys.stdin.fileno() if is_stdin else file
        with open(source, "rb", closefd=not is_stdin) as opened:
            return analyse(json.load(opened))
    except OSError as error:
        raise OptionError(f"{file!r} cannot be read: {error.strerror}.") from None
    except TraceError as error:
        why = str(error)
    except RecursionError:
        why = "its JSON is nested too deeply"
    except ValueError as error:
        why = f"it is not JSON ({error})"
    raise OptionError(
        f"{file!r} is not a trace of poprun: {why}. Give a file that poprun "
        "--trace has written."
    )
