"""`popctl attach`: show the output of one instance."""

import click

from poprun.popctl.jobs import choose_job, job_and_instance
from poprun.popctl.output import copy_output
from poprun.wire import protocol


@click.command("attach", short_help="Show the output of an instance from now on.")
@click.argument("arguments", nargs=-1, metavar="[JOB] INSTANCE")
def command(arguments: tuple[str, ...]) -> None:
    """Show the output of one instance from now on.

    JOB is the beginning of an id that `popctl ps` shows. It can be left out if only one
    job is running. INSTANCE is a number. Ctrl-C ends popctl, not the job. The job
    never waits for popctl: output that is read too slowly is left out, and popctl says
    how much.
    """
    job, instance = job_and_instance(arguments, needs_instance=True)
    assert instance is not None
    connection = choose_job(job)
    connection.send(protocol.WATCH_OUTPUT, instance)
    greeting = (
        f"Instance {instance} of job {connection.name}; Ctrl-C leaves it running."
    )
    copy_output(connection, greeting)
