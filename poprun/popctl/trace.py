"""`popctl trace`: who waited for whom in a job, by the file of --trace."""

import json
import os
import sys
from contextlib import suppress

import click

from poprun.errors import OptionError
from poprun.texts.stdout import write
from poprun.trace.analysis import TraceError, TraceSummary, analyse
from poprun.trace.page import as_page
from poprun.trace.tables import as_text


@click.command("trace")
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
    try:
        _write_page(html, page.encode(errors="backslashreplace"))
    except OSError as error:
        raise OptionError(
            f"--html {html!r} cannot be written: {error.strerror}."
        ) from None


def _write_page(path: str, page: bytes) -> None:
    """Replace a file by the page, or write it to a pipe or a terminal.

    Raises:
        OSError: It cannot be written. A file is then as it was.
    """
    path = os.path.realpath(path)
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as pipe:
            pipe.write(page)
        return
    new = f"{path}.{os.getpid()}.new"
    try:
        with open(new, "xb") as file:
            file.write(page)
        os.replace(new, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(new)
        raise


def _read(file: str) -> TraceSummary:
    """Return what a file tells.

    Raises:
        OptionError: It cannot be read, or is no trace of poprun's.
    """
    try:
        return analyse(json.loads(_read_bytes(file)))
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


def _read_bytes(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    with open(file, "rb") as opened:
        return opened.read()
