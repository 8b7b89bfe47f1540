"""`popctl ps`: list the jobs of this user that run on this machine."""

import os
import shlex

import click

from poprun.output.terminal import clock
from poprun.popctl.job_table import View, last_change, late_joins
from poprun.popctl.jobs import SHOWN, no_jobs, show_jobs
from poprun.popctl.output import output_width, say, write_json
from poprun.texts.stdout import write
from poprun.texts.tables import table
from poprun.words import counted

HEAD = ("JOB", "AGE", "INSTANCES", "HOSTS", "PHASE", "PROGRAM")


@click.command("ps")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the ids of the jobs.")
def command(as_json: bool, quiet: bool) -> None:
    """List your jobs that run on this machine."""
    if as_json and quiet:
        raise click.UsageError("--json and --quiet cannot be combined.")
    jobs, refusals, others = show_jobs()
    for refusal in refusals:
        say(str(refusal))
    if quiet:
        write("".join(f"{job['id'][:SHOWN]}\n" for job in jobs))
        return
    if as_json:
        write_json(jobs)
        return
    if jobs:
        write(table(HEAD, [_row(job) for job in jobs], output_width()))
        for job in jobs:
            for remark in filter(None, (last_change(job), late_joins(job))):
                write(f"{job['id'][:SHOWN]}, {remark}\n")
    else:
        say(no_jobs())
    if os.geteuid() == 0 and others:
        say(
            f"{counted(others, 'job')} of other users not shown: only its own user can "
            "control a job. Run popctl as that user: runuser -u USER -- popctl ps"
        )


def _row(job: View) -> tuple[str, ...]:
    if "program" not in job:
        return job["id"][:SHOWN], "?", "?", "?", job["phase"], f"(PID {job['pid']})"
    running, size = job["num_running"], job["num_instances"]
    hosts, phase = job["hosts"], job.get("step") or job["phase"]
    if job.get("attempt"):
        phase += f", attempt {job['attempt']}"
    if job.get("generation"):
        phase += f", generation {job['generation']}"
    return (
        job["id"][:SHOWN],
        clock(job["elapsed"]),
        str(size) if running == size else f"{running} of {size}",
        hosts[0] if len(hosts) == 1 else counted(len(hosts), "host") if hosts else "?",
        phase,
        shlex.join(job["program"]),
    )
