"""`popctl ps`: the jobs of this user that run on this machine."""

import json
import os
import shlex
from typing import Any

import click

from poprun.errors import JobRequestError
from poprun.output.terminal import clock
from poprun.popctl.jobs import SHOWN, connect, listening_names, no_jobs, show_jobs
from poprun.popctl.output import output_width, say
from poprun.texts.stdout import write
from poprun.texts.tables import table
from poprun.words import counted

HEAD = ("JOB", "AGE", "INSTANCES", "HOSTS", "PHASE", "PROGRAM")


@click.command("ps")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the ids of the jobs.")
def command(as_json: bool, quiet: bool) -> int:
    """List your jobs that run on this machine."""
    if as_json and quiet:
        raise click.UsageError("--json and --quiet cannot be combined.")
    jobs, refusals = show_jobs()
    for refusal in refusals:
        say(str(refusal))
    if quiet:
        write("".join(f"{job['id'][:SHOWN]}\n" for job in jobs))
        return 0
    if as_json:
        write(json.dumps(jobs, indent=2) + "\n")
        return 0
    if jobs:
        write(table(HEAD, [_row(job) for job in jobs], output_width()))
    else:
        say(no_jobs())
    if os.geteuid() == 0:
        _note_other_users()
    return 0


def _row(job: dict[str, Any]) -> tuple[str, ...]:
    if "program" not in job:
        return job["id"][:SHOWN], "?", "?", "?", job["phase"], f"(PID {job['pid']})"
    running, size = job["num_running"], job["num_instances"]
    hosts = job["hosts"]
    return (
        job["id"][:SHOWN],
        clock(job["elapsed"]),
        str(size) if running == size else f"{running} of {size}",
        hosts[0] if len(hosts) == 1 else counted(len(hosts), "host") if hosts else "?",
        job.get("step") or job["phase"],
        shlex.join(job["program"]),
    )


def _note_other_users() -> None:
    """Tell root, who may do everything else, of jobs that it does not control."""
    others = [name for name in listening_names() if not _is_own(name)]
    if others:
        say(
            f"{counted(len(others), 'job')} of other users not shown: only its own "
            "user can control a job. Run popctl as that user: runuser -u USER -- "
            "popctl ps"
        )


def _is_own(identity: str) -> bool:
    try:
        connection = connect(identity, deadline=0.0)
    except JobRequestError:
        return True  # a line of its own tells of it
    if connection is not None:
        connection.close()
    return connection is not None
