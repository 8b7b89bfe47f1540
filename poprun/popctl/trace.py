"""`popctl trace`: who waited for whom in a job, by the file of --trace."""

import json
import os

import click

from poprun.errors import OptionError
from poprun.stdout import write
from poprun.trace.analysis import TraceError, TraceSummary, analyse
from poprun.trace.page import as_page
from poprun.trace.tables import as_text


@click.command("trace")
@click.argument("file", type=click.Path())
@click.option(
    "--html",
    metavar="PAGE",
    help="Write a page to this file instead, which needs no network to be looked at.",
)
@click.option(
    "--calls",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="How many of the calls with the longest waits to show.",
)
def command(file: str, html: str | None, calls: int) -> None:
    """Show who waited for whom in a job that ran with poprun --trace FILE."""
    summary = _read(file)
    if html is None:
        write(as_text(summary, calls))
        return
    title = f"Trace of poprun: {os.path.basename(file)}"
    try:
        with open(html, "w", encoding="utf-8", errors="backslashreplace") as page:
            page.write(as_page(summary, title))
    except OSError as error:
        raise OptionError(
            f"--html {html!r} cannot be written: {error.strerror}."
        ) from None


def _read(file: str) -> TraceSummary:
    """Return what a file tells.

    Raises:
        OptionError: It cannot be read, or is no trace of poprun's.
    """
    try:
        with open(file, encoding="utf-8") as opened:
            return analyse(json.load(opened))
    except OSError as error:
        raise OptionError(f"{file!r} cannot be read: {error.strerror}.") from None
    except (TraceError, ValueError, RecursionError) as error:
        raise OptionError(
            f"{file!r} is no trace of poprun's: {error}. Name a file that poprun "
            "--trace has written."
        ) from None
