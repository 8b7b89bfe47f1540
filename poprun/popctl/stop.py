"""`popctl stop`: stop a job like Ctrl-C."""

import click

from poprun.errors import JobRequestError
from poprun.output.terminal import clock
from poprun.popctl.jobs import (
    ANSWER_S,
    JobConnection,
    choose_job,
    explain_end,
    program_of,
    show_job,
)
from poprun.texts.stdout import write
from poprun.wire import protocol


@click.command("stop", short_help="Stop a job like Ctrl-C.")
@click.argument("job", required=False)
@click.option(
    "--now",
    is_flag=True,
    help="Kill the instances at once, without waiting for --grace.",
)
@click.option("--no-wait", is_flag=True, help="Do not wait until the job has ended.")
def command(job: str | None, now: bool, no_wait: bool) -> None:
    """Stop a job like Ctrl-C, and wait until it has ended.

    JOB is the beginning of an id that `popctl ps` shows. It can be left out if only one
    job is running. popctl then says which job that is. The instances get SIGINT, or
    SIGTERM if they ignore that, and SIGKILL after the job's --grace. A second `popctl
    stop` kills them at once. The exit code of poprun is 130.
    """
    connection = choose_job(job)
    subject = f"Job {connection.name}"
    if job is None:
        view = show_job(connection)
        subject += f" ({program_of(view)}; started {clock(view['elapsed'])} ago)"
        # A connection is for one request.
        connection.close()
        connection = choose_job(connection.identity)
    message = _request_stop(connection, now=now)
    if message is not None and message[0] == protocol.REQUEST_ACCEPTED:
        if no_wait or job is None:
            write(f"{subject} is being stopped.\n")
        if no_wait:
            return
        message = connection.receive(None)
    if message is None or message[0] != protocol.JOB_ENDED:
        raise JobRequestError(explain_end(connection, message))
    write(f"{explain_end(connection, message)}\n")


def _request_stop(
    connection: JobConnection, *, now: bool
) -> tuple[int, list[bytes]] | None:
    """Send the request, and return the answer; None if poprun closes the connection.

    Raises:
        JobRequestError: None has come. The job is not stopped then.
    """
    connection.send(protocol.STOP_JOB, int(now))
    try:
        return connection.receive(ANSWER_S)
    except JobRequestError as error:
        # poprun does not stop a job for a client that has closed its connection.
        connection.close()
        raise JobRequestError(
            f"{error} popctl has withdrawn its request, so the job will not be "
            "stopped later."
        ) from None
