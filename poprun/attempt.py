"""One attempt to run a job, from the start of its mpirun to the exit code.

Job -> Ended -> Outcome -> exit code
"""

import os
import time
from collections.abc import Mapping, Sequence

from poprun.job.clients.job_view import JobView
from poprun.job.clients.server import Clients
from poprun.job.events import Event
from poprun.job.host_link import HostLink
from poprun.job.mpirun_process import MpirunProcess
from poprun.job.prepare import output
from poprun.job.supervise.event_log import EventLog
from poprun.job.supervise.supervisor import Supervisor
from poprun.job.values import Job
from poprun.log import Log
from poprun.options.settings import Settings
from poprun.plan.hosts import HostSpec
from poprun.plan.values import Plan, Request
from poprun.preflight.hosts import Preflights
from poprun.preflight.out_of_memory import MemoryCounters
from poprun.result import conclusion
from poprun.result.progress import Progress
from poprun.stdio import terminal
from poprun.stdio.output_tap import OutputTap
from poprun.stdio.router import OutputRouter
from poprun.stdio.screen import Screen
from poprun.stdio.stdin import describe_unread


def run_attempt(
    job: Job,
    mpirun: MpirunProcess,
    hosts: Sequence[HostLink],
    plan: Plan,
    settings: Settings,
    environ: Mapping[str, str],
    preflights: Preflights,
    memory_before: Mapping[HostSpec, MemoryCounters],
) -> int:
    """Supervise a job whose mpirun starts, report how it went; return the exit code.

    Args:
        memory_before: The counters of each host before mpirun was started.
    """
    progress = Progress(len(job.specs), time.monotonic())
    router = _make_router(plan.request, settings, environ, progress)
    log = Log(settings.verbosity, router.say)
    event_log = EventLog(log, keep_going=job.keep_going, names_hosts=len(hosts) > 1)

    def listen(event: Event) -> None:
        progress.listen(event)
        event_log.listen(event)

    tap = OutputTap()
    view = JobView(plan, job.specs[0], tap.last_line)
    clients = Clients(plan.request.identity, view, tap)
    supervisor = Supervisor(job, mpirun, hosts, router, listen, clients)
    supervisor.start()
    try:
        ended = supervisor.run()
    finally:
        router.hide_status(forever=True)
    router.end()
    if not settings.is_given("stdin"):
        _warn_of_unread_input(log)
    outcome = conclusion.judge_attempt(ended, plan, router)
    conclusion.report_attempt(
        outcome,
        ended,
        plan,
        router,
        log,
        memory_before,
        lambda host: preflights[host].read_memory_counters(),
        debug=settings["debug"],
    )
    supervisor.write_out()
    clients.end(outcome.exit_code, outcome.sentence)
    supervisor.close()
    return outcome.exit_code


def _make_router(
    request: Request,
    settings: Settings,
    environ: Mapping[str, str],
    progress: Progress,
) -> OutputRouter:
    has_status = settings["progress"] and terminal.has_status_line(environ)
    # What the user types on the terminal would appear after the status.
    has_status &= not (request.stdin.is_own and os.isatty(0))
    return OutputRouter(
        output.routes(request, settings),
        screens=_screens(environ),
        status=progress.text if has_status else None,
    )


def _screens(environ: Mapping[str, str]) -> dict[str, Screen]:
    """Return what is known of the terminals that poprun writes to."""
    if terminal.is_dumb(environ):
        return {}
    _, columns = terminal.own_size()
    named = (("stdout", 1), ("stderr", 2))
    return {name: Screen(columns) for name, number in named if os.isatty(number)}


def _warn_of_unread_input(log: Log) -> None:
    if unread := describe_unread():
        log.warn(
            f"The standard input holds {unread}, which no instance reads. For instance "
            "0 to read it, add --stdin 0; for each instance to get a copy, --stdin all."
        )
