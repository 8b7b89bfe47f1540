"""Print what options ask to see of a plan: the topology, the dry run, the log."""

import errno
import json
import os
from collections.abc import Sequence

from poprun.errors import OUTPUT_CLOSED, UNWRITTEN
from poprun.log import DEBUG, Log
from poprun.options.settings import Settings
from poprun.output.terminal import columns_of
from poprun.output.writer import write_text
from poprun.plan import drawing, dry_run
from poprun.plan.values import Plan


def show_plan(
    plan: Plan,
    settings: Settings,
    log: Log,
    device_lines: Sequence[tuple[str, str]] = (),
    partition_note: str = "",
) -> int:
    """Print what the settings ask for; return the exit code, 0 if it is written.

    Args:
        device_lines: The log lines about the IPUs of the job, with their levels.
        partition_note: A sentence about the partition of a dry run.
    """
    if settings.prints_topology or settings.verbosity >= DEBUG:
        hosts = [host.name for host in plan.request.hosts]
        form = "json" if settings["json"] else settings["topology-format"]
        text = drawing.draw(plan.topology, hosts, form, columns_of(1))
        if code := _print(text + "\n", log):
            return code
    is_dry_run = settings["dry-run"]
    if plan.request.arguments.show_instances and not is_dry_run:
        log.say(dry_run.instance_table(plan), even_if_quiet=True)
    if settings.verbosity:
        dry_run.log_plan(log, plan, settings, device_lines)
    if not is_dry_run:
        return 0
    if settings["json"]:
        value = dry_run.as_object(plan, partition_note)
        return _print(json.dumps(value, indent=2) + "\n", log)
    return _print(dry_run.render(plan, partition_note), log)


def _print(text: str, log: Log) -> int:
    """Write a text to stdout, and return the exit code that follows from it."""
    failure = write_text(1, text)
    if not failure:
        return 0
    if failure == errno.EPIPE:
        return OUTPUT_CLOSED
    log.error(f"The standard output cannot be written: {os.strerror(failure)}.")
    return UNWRITTEN
