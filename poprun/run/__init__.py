"""One run of poprun: the order of its stages, and nothing else.

settings -> Request -> DeviceReservation -> Plan -> Job -> Attempted -> exit code
"""

import errno
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial

from poprun.color import uses_color
from poprun.errors import OUTPUT_CLOSED, UNWRITTEN
from poprun.helpers.own_process import open_umask, without_own_changes
from poprun.job import output_routes as output
from poprun.job import reservation
from poprun.job.values import Job
from poprun.log import DEBUG, Log
from poprun.mpirun.environment import check_is_only_rank, without_outer_poprun
from poprun.options.misplaced import explain_misplaced, find_misplaced
from poprun.options.programs import Program, words_of
from poprun.options.settings import Settings
from poprun.options.types import AUTO
from poprun.output import terminal
from poprun.output.phase_line import PhaseLine
from poprun.output.writer import write_text
from poprun.plan import drawing, dry_run
from poprun.plan.assignments import make_plan
from poprun.plan.hosts import SLURM_NODE_NAME, HostSpec
from poprun.plan.instance_count import with_tasks_of_slurm
from poprun.plan.request import read_request
from poprun.plan.values import PartitionVariables, Plan, Request, new_attempt
from poprun.reach.directories import check_current_directory, temporary_directory
from poprun.reach.hosts import MARK, LocalPreflight, Preflight, Preflights
from poprun.reach.remote import HostAccess, open_hosts
from poprun.result.recorder import Recorder
from poprun.run.restarts import Restarts, Steps
from poprun.run.stages import STAGES, RunContext, Stages, check
from poprun.supervise.clients.preparing_job import PreparingJob
from poprun.supervise.guard_start import StartedGuard
from poprun.trace.job_trace import JobTrace
from poprun.wire import protocol

Preview = Callable[[Request, Mapping[str, str]], tuple[PartitionVariables | None, str]]


def run(
    settings: Settings,
    programs: Sequence[Program],
    guard: StartedGuard | None,
    caller_environ: Mapping[str, str],
    stages: "Stages | None" = None,
    preview: Preview = reservation.preview,
    recorder: "Recorder | None" = None,
    trace: "JobTrace | None" = None,
) -> int:
    """Run the programs of a job, or show what would be run; return the exit code.

    Args:
        guard: The guard that has been started; None for a dry run.
        caller_environ: The environment that poprun was started with.
        preview: Returns the partition that a dry run shows, and a note about it.
        recorder: Writes the files of --result and --events.
        trace: Writes that of --trace.
    """
    # For the files that poprun makes itself; the instances have the caller's umask.
    umask = open_umask()
    environ = without_outer_poprun(without_own_changes(caller_environ))
    check_is_only_rank(environ)
    check_current_directory()
    given = set(filter(settings.is_given, settings.entries))
    words = words_of(programs)
    misplaced = explain_misplaced(find_misplaced(words, given))
    settings = with_tasks_of_slurm(settings, caller_environ)
    identity = os.urandom(16).hex()
    # auto is not known yet.
    numbers = [settings[name] for name in ("num-instances", "num-replicas")]
    num_instances, num_replicas = (0 if n == AUTO else n for n in numbers)
    shape = num_instances, num_replicas
    preparing = PreparingJob(identity, words, shape)
    phase_line = _phase_line(settings, environ, preparing, runs=guard is not None)
    has_color = uses_color(settings["color"], environ, 2)
    log = Log(
        settings.verbosity,
        phase_line.write,
        has_color=has_color,
        is_quiet=settings["quiet"],
    )
    open_hosts = partial(_open_hosts, settings, environ, log, phase_line)
    # A dry run plans a job on several hosts as if all were this one.
    opener = None if guard is None else partial(open_hosts, guard)
    with (
        closing(Preflights(opener)) as hosts,
        _traced(trace, log),
        preparing,
        phase_line,
    ):
        phase_line.show("checking the hosts")
        _enter(trace, "plan")
        request = _read_request(settings, programs, environ, hosts, identity)
        for note in (*request.notes, *output.note_on_terminal(request), *misplaced):
            log.warn(note)
        topology = request.topology
        preparing.set_shape(topology.num_instances, topology.num_replicas)
        if guard is None:
            expected = preview(request, environ)
            return _dry_run(request, expected, settings, log)
        context = RunContext(
            settings=settings,
            caller_environ=caller_environ,
            environ=environ,
            umask=umask,
            log=log,
            phase_line=phase_line,
            hosts=hosts,
            open_hosts=open_hosts,
            preparing=preparing,
            recorder=recorder,
            trace=trace,
        )
        return _run_job(request, guard, context, stages or STAGES)


def _phase_line(
    settings: Settings,
    environ: Mapping[str, str],
    preparing: PreparingJob,
    *,
    runs: bool,
) -> PhaseLine:
    """Return the line of what poprun does, which popctl shows, too."""
    is_wanted = runs and settings.shows_progress
    is_possible = is_wanted and terminal.has_status_line(environ)
    return PhaseLine(is_possible=is_possible, on_phase=preparing.enter)


def _read_request(
    settings: Settings,
    programs: Sequence[Program],
    environ: Mapping[str, str],
    hosts: Preflights,
    identity: str,
) -> Request:
    return read_request(
        settings,
        programs,
        environ,
        temporary_directory(environ),
        hosts.describe,
        reservation.find_host_servers,
        identity,
    )


def _dry_run(
    request: Request,
    expected: tuple[PartitionVariables | None, str],
    settings: Settings,
    log: Log,
) -> int:
    """Show what would be run; return the exit code.

    Args:
        expected: The partition that the job would be granted, and a note about it.
    """
    partition, note = expected
    attempt = new_attempt(request.identity, 0, request.facts[0].free_port)
    plan = make_plan(request, attempt, partition)
    return _show(plan, settings, log, partition_note=note)


def _run_job(
    request: Request, guard: StartedGuard, context: "RunContext", stages: "Stages"
) -> int:
    """Reserve, prepare and run a job, with its restarts; return the exit code."""
    log, phase_line, trace = context.log, context.phase_line, context.trace
    # A job that is refused must not reserve or show anything.
    _enter(trace, "check")
    files = check(request, context)
    _enter(trace, "reserve IPUs")
    reserved = stages.reserve(request, context.environ, guard, log, phase_line)

    def prepare(number: int, port: int) -> tuple[Plan, Job]:
        attempt = new_attempt(request.identity, number, port)
        plan = make_plan(request, attempt, reserved.partition)
        return plan, reserved.with_devices(stages.prepare(plan, files, context))

    starts = False
    _enter(trace, "prepare")
    try:
        plan, job = prepare(0, request.facts[0].free_port)
        phase_line.hide()
        if code := _show(plan, context.settings, log, reserved.lines):
            return code
        starts = True
    finally:
        if not starts:
            reserved.cancel(guard)
    _enter(trace, "run")
    began = time.monotonic()
    run_attempt = partial(stages.run_attempt, context=context)
    most = context.settings["max-restarts"]
    clients = context.preparing.hand_over()
    end = run_attempt(job, guard, plan, may_follow=most > 0, clients=clients)
    if end.successor is None:
        return end.exit_code
    reopen = partial(_reopen_hosts, request, context)
    environ = context.caller_environ
    steps = Steps(
        reopen=reopen,
        prepare=prepare,
        run=run_attempt,
        environ=environ,
        show=phase_line.show,
    )
    return Restarts(steps, most, log, began, context.recorder).run(end, job)


@contextmanager
def _traced(trace: "JobTrace | None", log: Log) -> Iterator[None]:
    """Write the trace of the run in the end, if it is to have one."""
    try:
        yield
    finally:
        if trace is not None:
            if failure := trace.write():
                log.error(failure)
            if gap := trace.gap():
                log.warn(gap)


def _enter(trace: "JobTrace | None", phase: str) -> None:
    if trace is not None:
        trace.enter(phase)


def _open_hosts(
    settings: Settings,
    environ: Mapping[str, str],
    log: Log,
    phase_line: PhaseLine,
    guard: StartedGuard,
    hosts: Sequence[HostSpec],
    *,
    again: bool = False,
) -> Sequence[Preflight]:
    """Return what looks things up on each host; this one needs no ssh.

    Args:
        again: Whether an attempt has run before this one: its instances may have
            written to the folder of --sync, which is not copied then.
    """
    names = [host.name for host in hosts]
    is_named = settings.is_given("host") or settings.is_given("hostfile")
    if not is_named and names == [environ.get(SLURM_NODE_NAME) or "localhost"]:
        return [LocalPreflight()]
    folder = None if again else settings["sync"]
    mark = os.urandom(16).hex()
    # The guard ends what has it, if poprun is killed meanwhile.
    guard.tell(protocol.pack(protocol.MARK, f"{MARK}={mark}".encode()))
    access = HostAccess(
        ssh=settings["ssh"],
        tell=guard.tell,
        log=log,
        show_phase=phase_line.show,
        distributes_key=settings["distribute-ssh-key"],
        synchronises_python=settings["synchronise-python-venv"],
        synchronised_folder="" if folder is None else os.path.abspath(folder),
    )
    opened = open_hosts(hosts, {**environ, MARK: mark}, access)
    phase_line.show("checking the hosts")
    return opened


def _reopen_hosts(request: Request, context: "RunContext", guard: StartedGuard) -> int:
    """Reach the hosts again before another attempt; return a port for rank 0."""
    reopen = partial(context.open_hosts, guard, again=True)
    context.hosts.reopen(request.hosts, reopen)
    context.hosts.check_mpi(request.mpi)
    return context.hosts.describe(request.hosts[:1])[0].free_port


def _show(
    plan: Plan,
    settings: Settings,
    log: Log,
    device_lines: Sequence[tuple[str, str]] = (),
    partition_note: str = "",
) -> int:
    """Print the topology, the log and the dry run, where the settings ask for them."""
    if settings.prints_topology or settings.verbosity >= DEBUG:
        hosts = [host.name for host in plan.request.hosts]
        form = "json" if settings["json"] else settings["topology-format"]
        text = drawing.draw(plan.topology, hosts, form, terminal.columns_of(1))
        if code := _print(text + "\n", log):
            return code
    shows_instances = plan.request.arguments.job.show_instances
    if not (shows_instances or settings.verbosity or settings["dry-run"]):
        return 0
    if shows_instances and not settings["dry-run"]:
        log.say(dry_run.instance_table(plan), even_if_quiet=True)
    if settings.verbosity:
        dry_run.log_plan(log, plan, settings, device_lines)
    if not settings["dry-run"]:
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
