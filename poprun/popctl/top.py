"""`popctl top`: show what the instances of a job do, in a terminal, or once."""

import sys

import click

from poprun.errors import JobRequestError
from poprun.popctl.job_table import instance_lines, rates_of, summary
from poprun.popctl.jobs import ANSWER_S, JobConnection, choose_job, read_view, show_job
from poprun.popctl.output import output_width, write_json
from poprun.texts.click_program import Seconds
from poprun.texts.stdout import write
from poprun.texts.tables import cut
from poprun.wire import protocol

# The interval over which --once measures the use of the CPUs.
ONCE_MS = 1000


@click.command(
    "top", short_help="Show what the instances of a job are doing, like top."
)
@click.argument("job", required=False)
@click.option(
    "--interval",
    type=Seconds(0.5, 3600),
    default=2.0,
    show_default=True,
    metavar="TIME",
    help="How often to refresh the screen.",
)
@click.option("--once", is_flag=True, help="Print one table and exit.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the current state as JSON and exit."
)
def command(job: str | None, interval: float, once: bool, as_json: bool) -> None:
    """Show what the instances of a job are doing, and the processes below them.

    JOB is the beginning of an id that `popctl ps` shows. It can be left out if only one
    job is running. CPU is in percent of one CPU; MEMORY is resident memory.
    """
    if once and as_json:
        raise click.UsageError("--once and --json cannot be combined.")
    if as_json:
        write_json(show_job(choose_job(job)))
    elif once:
        _write_once(choose_job(job))
    else:
        write(_show_screen(job, int(interval * 1000)))


def _write_once(connection: JobConnection) -> None:
    connection.send(protocol.SHOW_JOB, ONCE_MS, 1)
    before = read_view(connection, ANSWER_S)
    # Before its start nothing is measured.
    is_waiting = before["phase"] == "preparing"
    job = before if is_waiting else read_view(connection, ANSWER_S + ONCE_MS / 1000)
    rates = rates_of(job, before)
    width = output_width()
    lines = [*summary(job, rates), "", *instance_lines(job, rates, width)]
    write("".join(f"{cut(line, width)}\n" for line in lines))


def _show_screen(job: str | None, interval_ms: int) -> str:
    """Show the job until it ends or the user leaves; return what to say then."""
    # textual reads the first of them and writes to the last.
    if not all(
        s is not None and s.isatty() for s in (sys.stdin, sys.stdout, sys.stderr)
    ):
        raise JobRequestError(
            "popctl top needs a terminal. --once prints one table, and --json one "
            "object, without one."
        )
    try:
        from poprun.popctl.top_screen import show  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(("textual", "rich")):
            raise
        raise JobRequestError(
            "popctl top needs textual, which is not installed. Install it from "
            "poprun's source folder with pip install '.[top]', or use --once or "
            "--json, which do not need it."
        ) from None
    connection = choose_job(job)
    connection.send(protocol.SHOW_JOB, interval_ms, 1)
    return show(connection)
