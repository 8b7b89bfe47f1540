"""The stages of a run that a dry run leaves out: reserve, describe and run the job.

Request -> DeviceReservation; Plan -> Job -> Ended -> Outcome -> exit code
"""

import time
from collections.abc import Callable, Mapping, Sequence

from poprun.job.events import Event
from poprun.job.guard_start import StartedGuard
from poprun.job.local_host.local_host import LocalHost
from poprun.job.mpirun_process import MpirunProcess
from poprun.job.prepare import job_description, output, reservation
from poprun.job.resource_limits import check_proc
from poprun.job.supervise.event_log import EventLog
from poprun.job.supervise.supervisor import Supervisor
from poprun.job.values import Job
from poprun.log import Log
from poprun.options.settings import Settings
from poprun.plan.hosts import SLURM_NODE_NAME
from poprun.plan.unsupported import refuse_unsupported
from poprun.plan.values import Plan, Request
from poprun.preflight.hosts import Preflights
from poprun.preflight.program import resolve_for_instances
from poprun.record import Record
from poprun.result.progress import Progress
from poprun.stdio import terminal
from poprun.stdio.output_files import make_files
from poprun.stdio.router import OutputRouter
from poprun.stdio.stdin import describe_unread


class Stages(Record):
    """The stages of a run that change something; tests pass others."""

    # With the arguments of reservation.reserve and of prepare and run_job below.
    reserve: Callable[..., reservation.DeviceReservation]
    prepare: Callable[..., Job]
    run_job: Callable[..., int]


def check(
    request: Request,
    settings: Settings,
    program: Sequence[str],
    environ: Mapping[str, str],
    hosts: Preflights,
) -> list[str]:
    """Return the file of the program for each instance.

    Raises:
        PoprunError: There is no such file, or poprun cannot start the job here.
    """
    check_proc()
    output.wait_for_stdin(request.stdin)
    slurm_name = environ.get(SLURM_NODE_NAME, "")
    refuse_unsupported(settings, request.hosts, slurm_name)
    return resolve_for_instances(
        program,
        request,
        environ,
        lambda host, *names: hosts[host].find_program(*names),
    )


def prepare(
    plan: Plan,
    settings: Settings,
    files: list[str],
    program: Sequence[str],
    environ: Mapping[str, str],
    umask: int,
) -> Job:
    """Return the job, and make the directories that the user names.

    Raises:
        PoprunError: The job cannot be started.
    """
    request = plan.request
    num_instances = request.topology.num_instances
    width = output.routes(request, settings).width_of_mark(num_instances)
    job = job_description.make_job(
        plan,
        settings,
        files,
        program,
        environ,
        terminals=terminal.choose_terminals(settings["tty"], width),
        umask=umask,
    )
    if (directory := request.arguments.job.output_filename) is not None:
        make_files(directory, num_instances)
    job_description.make_cache_directory(request)
    return job


def run_job(
    job: Job,
    guard: StartedGuard,
    plan: Plan,
    settings: Settings,
    environ: Mapping[str, str],
    preflights: Preflights,
) -> int:
    """Run a job to its end, report how it went, and return the exit code."""
    # The shell may have put poprun in the background while it waited for IPUs.
    output.wait_for_stdin(job.stdin)
    progress = Progress(len(job.specs), time.monotonic())
    router = output.make_router(plan.request, settings, environ, progress.text)
    log = Log(settings.verbosity, router.say)
    memory = preflights.read_memory(plan.request.hosts)
    supervisor = _make_supervisor(job, guard, plan, router, log, progress)
    supervisor.start()
    # It takes a while until the first instance runs: time to import what comes last.
    from poprun.result import conclusion

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
        memory,
        lambda host: preflights[host].read_memory(),
        debug=settings["debug"],
    )
    supervisor.write_out()
    supervisor.close()
    return outcome.exit_code


def _make_supervisor(
    job: Job,
    guard: StartedGuard,
    plan: Plan,
    router: OutputRouter,
    log: Log,
    progress: Progress,
) -> Supervisor:
    hosts = plan.request.hosts
    event_log = EventLog(log, keep_going=job.keep_going, names_hosts=len(hosts) > 1)

    def listen(event: Event) -> None:
        progress.listen(event)
        event_log.listen(event)

    here = hosts[0].name
    mpirun = MpirunProcess(job, guard, here)
    host = LocalHost(job, here, range(len(job.specs)), mpirun.remember)
    return Supervisor(job, mpirun, [host], router, listen)


def _warn_of_unread_input(log: Log) -> None:
    if unread := describe_unread():
        log.warn(
            f"The standard input holds {unread}, which no instance reads. For instance "
            "0 to read it, add --stdin 0; for each instance to get a copy, --stdin all."
        )


STAGES = Stages(reservation.reserve, prepare, run_job)
