"""`popctl stop`: stop a job as Ctrl-C does."""

import click

from poprun.errors import JobRequestError
from poprun.helpers import protocol
from poprun.popctl.jobs import ANSWER_S, choose_job, explain_end
from poprun.stdout import write


@click.command("stop")
@click.argument("job", required=False)
@click.option("--now", is_flag=True, help="Kill the instances, without their --grace.")
@click.option("--no-wait", is_flag=True, help="Do not wait for the end of the job.")
def command(job: str | None, now: bool, no_wait: bool) -> None:
    """Stop a job as Ctrl-C does, and wait until it has ended.

    JOB is the beginning of an id that `popctl ps` shows, and may be left out if there
    is one job only. The instances get SIGINT, and SIGKILL after the --grace of the job;
    a second `popctl stop` kills them at once. The exit code of poprun is 130.
    """
    connection = choose_job(job)
    connection.send(protocol.STOP_JOB, int(now))
    message = connection.receive(ANSWER_S)
    if message is not None and message[0] == protocol.REQUEST_ACCEPTED:
        if no_wait:
            write(f"Job {connection.name} is being stopped.\n")
            return
        message = connection.receive(None)
    if message is None or message[0] != protocol.JOB_ENDED:
        raise JobRequestError(explain_end(connection, message))
    write(f"{explain_end(connection, message)}\n")
