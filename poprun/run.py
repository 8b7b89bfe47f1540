"""One run of poprun: the order of its stages, and nothing else.

settings -> Setup -> DeviceReservation -> Job -> Ended -> Outcome -> exit code
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
from poprun.plan import drawing, dry_run, planner
from poprun.plan.hosts import SLURM_NODE_NAME
from poprun.plan.planner import Setup
from poprun.plan.unsupported import refuse_what_cannot_start
from poprun.preflight.hosts import Preflights
from poprun.preflight.program import resolve_for_instances
from poprun.result.progress import Progress
from poprun.result.show import print_text
from poprun.stdio import terminal
from poprun.stdio.router import make_files
from poprun.stdio.stdin import describe_unread
from poprun.stdio.writer import write_text


class Stages(NamedTuple):
    """The stages of a run that change something; tests pass others."""

    reserve: Callable[
        [Setup, Mapping[str, str], StartedGuard, Log], reservation.DeviceReservation
    ]
    prepare: Callable[
        [Setup, Settings, list[str], Sequence[str], Mapping[str, str], int], Job
    ]
    run_job: Callable[
        [Job, StartedGuard, Setup, Settings, Mapping[str, str], Preflights], int
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
    setup = planner.make_setup(
        settings,
        environ,
        job_description.temporary_directory(environ),
        hosts.describe,
    )
    for note in setup.notes:
        log.warn(note)
    if guard is None:
        return _show(setup, settings, program, environ, log, verbosity)
    # Before anything is reserved for a job that is refused, or shown of it.
    files = _check(setup, settings, program, environ, hosts)
    reserved = stages.reserve(setup, environ, guard, log)
    setup = reserved.setup
    try:
        job = reserved.with_devices(
            stages.prepare(setup, settings, files, program, environ, umask)
        )
        lines = reserved.lines
        code = _show(setup, settings, program, environ, log, verbosity, lines)
    except BaseException:
        reserved.cancel(guard)
        raise
    if code:
        reserved.cancel(guard)
        return code
    return stages.run_job(job, guard, setup, settings, caller_environ, hosts)


def _verbosity(settings: Settings) -> int:
    return DEBUG if settings["debug"] else settings.verbosity


def _check(
    setup: Setup,
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
    output.wait_for_stdin(setup.stdin)
    slurm_name = environ.get(SLURM_NODE_NAME, "")
    refuse_what_cannot_start(settings, setup.plan.hosts, slurm_name)
    return resolve_for_instances(
        program,
        setup.plan.assignments,
        environ,
        lambda host, *names: hosts[host].find_program(*names),
    )


def _prepare(
    setup: Setup,
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
    instances = setup.plan.assignments
    width = output.routes(setup, settings).width_of_mark(len(instances))
    job = job_description.make_job(
        setup,
        settings,
        files,
        program,
        environ,
        terminals=terminal.choose_terminals(settings["tty"], width),
        umask=umask,
    )
    if setup.arguments.output_filename is not None:
        make_files(setup.arguments.output_filename, len(instances))
    job_description.make_cache_directory(setup.named_cache)
    return job


def _show(
    setup: Setup,
    settings: Settings,
    program: Sequence[str],
    environ: Mapping[str, str],
    log: Log,
    verbosity: int,
    device_lines: Sequence[tuple[str, str]] = (),
) -> int:
    """Print the topology, the log and the dry run, as far as they are asked for."""
    if drawing.is_requested(settings) or verbosity >= DEBUG:
        topology = setup.plan.topology
        hosts = [host.name for host in setup.plan.hosts]
        form = settings["topology-format"]
        text = drawing.draw(topology, hosts, form, terminal.columns_of(1))
        if code := print_text(text + "\n", log):
            return code
    if setup.arguments.show_instances and not settings["dry-run"]:
        log.say(dry_run.instance_table(setup))
    if not verbosity and not settings["dry-run"]:
        return 0
    if verbosity:
        dry_run.log_plan(log, setup, settings, program, environ, device_lines)
    return print_text(dry_run.render(setup, program), log) if settings["dry-run"] else 0


def _run_job(
    job: Job,
    guard: StartedGuard,
    setup: Setup,
    settings: Settings,
    environ: Mapping[str, str],
    preflights: Preflights,
) -> int:
    # The shell may have put poprun in the background while it waited for IPUs.
    output.wait_for_stdin(job.stdin)
    verbosity = _verbosity(settings)
    progress = Progress(len(job.specs), time.monotonic())
    router = output.make_router(setup, settings, environ, progress.text)
    log = Log(verbosity, router.say)
    hosts = setup.plan.hosts
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
    outcome = conclusion.judge_attempt(ended, setup, router)
    conclusion.report_attempt(
        outcome,
        ended,
        setup,
        router,
        log,
        memory,
        lambda host: preflights[host].read_memory(),
        debug=settings["debug"],
    )
    running.write_out()
    running.close()
    return outcome.exit_code


STAGES = Stages(reservation.reserve, _prepare, _run_job)
