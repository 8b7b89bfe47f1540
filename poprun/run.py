"""One run of poprun: the order of its stages, and nothing else.

settings -> Request -> DeviceReservation -> Plan -> Job -> Ended -> Outcome -> exit code
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from poprun.helpers.processes import open_umask
from poprun.job.events import Event
from poprun.job.guard_start import StartedGuard
from poprun.job.local_host.local_host import LocalHost
from poprun.job.mpirun_process import MpirunProcess
from poprun.job.prepare import job_description, output, reservation
from poprun.job.resource_limits import check_proc
from poprun.job.supervise import supervisor
from poprun.job.supervise.event_log import EventLog
from poprun.job.values import Job
from poprun.log import DEBUG, Log
from poprun.mpirun.environment import without_outer_poprun, without_own_changes
from poprun.options.settings import Settings
from poprun.plan import attempt, drawing, dry_run
from poprun.plan.assignments import make_plan
from poprun.plan.hosts import SLURM_NODE_NAME
from poprun.plan.request import read_request
from poprun.plan.unsupported import refuse_what_cannot_start
from poprun.plan.values import PartitionVariables, Plan, Request
from poprun.preflight.hosts import Preflights
from poprun.preflight.program import resolve_for_instances
from poprun.result.progress import Progress
from poprun.result.show import print_text
from poprun.stdio import terminal
from poprun.stdio.router import make_files
from poprun.stdio.stdin import describe_unread
from poprun.stdio.writer import write_text


class Stages(NamedTuple):
    """The stages of a run that change something or ask V-IPU; tests pass others."""

    preview: Callable[
        [Request, Mapping[str, str]], tuple[PartitionVariables | None, str]
    ]
    reserve: Callable[
        [Request, Mapping[str, str], StartedGuard, Log], reservation.DeviceReservation
    ]
    prepare: Callable[
        [Plan, Settings, list[str], Sequence[str], Mapping[str, str], int], Job
    ]
    run_job: Callable[
        [Job, StartedGuard, Plan, Settings, Mapping[str, str], Preflights], int
    ]


def run(
    settings: Settings,
    program: Sequence[str],
    guard: StartedGuard | None,
    caller_environ: Mapping[str, str],
    stages: Stages | None = None,
) -> int:
    """Run a program once per instance, or show what would be run.

    Args:
        guard: Has been started already; None if nothing is to be started.
        caller_environ: The environment that poprun was started with.

    Returns:
        The exit code.
    """
    # Of what poprun makes itself; the instances have the caller's.
    umask = open_umask()
    stages = STAGES if stages is None else stages
    environ = without_outer_poprun(without_own_changes(caller_environ))
    verbosity = _verbosity(settings)
    log = Log(verbosity, lambda text: write_text(2, text))
    hosts = Preflights()
    request = read_request(
        settings,
        environ,
        job_description.temporary_directory(environ),
        hosts.describe,
    )
    for note in request.notes:
        log.warn(note)
    first = attempt.draw(request.identity, 0, request.facts[0].free_port)
    if guard is None:
        expected, note = stages.preview(request, environ)
        plan = make_plan(request, first, expected)
        return _show(plan, settings, program, log, verbosity, partition_note=note)
    # Before anything is reserved for a job that is refused, or shown of it.
    files = _check(request, settings, program, environ, hosts)
    reserved = stages.reserve(request, environ, guard, log)
    try:
        plan = make_plan(request, first, reserved.partition)
        job = reserved.with_devices(
            stages.prepare(plan, settings, files, program, environ, umask)
        )
        code = _show(plan, settings, program, log, verbosity, reserved.lines)
    except BaseException:
        reserved.cancel(guard)
        raise
    if code:
        reserved.cancel(guard)
        return code
    return stages.run_job(job, guard, plan, settings, caller_environ, hosts)


def _verbosity(settings: Settings) -> int:
    return DEBUG if settings["debug"] else settings.verbosity


def _check(
    request: Request,
    settings: Settings,
    program: Sequence[str],
    environ: Mapping[str, str],
    hosts: Preflights,
) -> list[str]:
    """Return the file of the program for each instance.

    Raises:
        PoprunError: There is none, or poprun cannot start the job here.
    """
    check_proc()
    output.wait_for_stdin(request.stdin)
    slurm_name = environ.get(SLURM_NODE_NAME, "")
    refuse_what_cannot_start(settings, request.hosts, slurm_name)
    return resolve_for_instances(
        program,
        request,
        environ,
        lambda host, *names: hosts[host].find_program(*names),
    )


def _prepare(
    plan: Plan,
    settings: Settings,
    files: list[str],
    program: Sequence[str],
    environ: Mapping[str, str],
    umask: int,
) -> Job:
    """Describe the job, and make the directories that the user names.

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


def _show(
    plan: Plan,
    settings: Settings,
    program: Sequence[str],
    log: Log,
    verbosity: int,
    device_lines: Sequence[tuple[str, str]] = (),
    partition_note: str = "",
) -> int:
    """Print the topology, the log and the dry run, as far as they are asked for."""
    if drawing.is_requested(settings) or verbosity >= DEBUG:
        hosts = [host.name for host in plan.request.hosts]
        form = settings["topology-format"]
        text = drawing.draw(plan.topology, hosts, form, terminal.columns_of(1))
        if code := print_text(text + "\n", log):
            return code
    if plan.request.arguments.job.show_instances and not settings["dry-run"]:
        log.say(dry_run.instance_table(plan))
    if not verbosity and not settings["dry-run"]:
        return 0
    if verbosity:
        dry_run.log_plan(log, plan, settings, program, device_lines)
    if not settings["dry-run"]:
        return 0
    return print_text(dry_run.render(plan, program, partition_note), log)


def _run_job(
    job: Job,
    guard: StartedGuard,
    plan: Plan,
    settings: Settings,
    environ: Mapping[str, str],
    preflights: Preflights,
) -> int:
    # The shell may have put poprun in the background while it waited for IPUs.
    output.wait_for_stdin(job.stdin)
    verbosity = _verbosity(settings)
    progress = Progress(len(job.specs), time.monotonic())
    router = output.make_router(plan.request, settings, environ, progress.text)
    log = Log(verbosity, router.say)
    hosts = plan.request.hosts
    memory = preflights.read_memory(hosts)
    event_log = EventLog(log, keep_going=job.keep_going, names_hosts=len(hosts) > 1)

    def listen(event: Event) -> None:
        progress.listen(event)
        event_log.listen(event)

    here = hosts[0].name
    mpirun = MpirunProcess(job, guard, here)
    host = LocalHost(job, here, range(len(job.specs)), mpirun.know)
    running = supervisor.Supervisor(job, mpirun, [host], router, listen)
    running.start()
    # It takes a while until the first instance runs: time to import what comes last.
    from poprun.result import conclusion

    try:
        ended = running.run()
    finally:
        router.hide_status(forever=True)
    router.end()
    if not settings.given("stdin") and (unread := describe_unread()):
        log.warn(
            f"The standard input holds {unread}, which no instance reads. For instance "
            "0 to read it, add --stdin 0; for each instance to get a copy, --stdin all."
        )
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
    running.write_out()
    running.close()
    return outcome.exit_code


STAGES = Stages(reservation.preview, reservation.reserve, _prepare, _run_job)
