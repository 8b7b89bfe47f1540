"""One run of poprun: the order of its stages, and nothing else.

settings -> Request -> DeviceReservation -> Plan -> Job -> Verdict -> exit code
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial

from poprun.helpers.own_process import open_umask
from poprun.job import job_description, output_routes, reservation
from poprun.job.resource_limits import check_proc
from poprun.job.values import Job
from poprun.mpirun.environment import check_is_only_rank
from poprun.options.programs import Program, explain_misplaced, words_of
from poprun.options.settings import Settings
from poprun.output import terminal
from poprun.output.output_files import make_files
from poprun.plan.assignments import make_plan
from poprun.plan.directories import check_current_directory
from poprun.plan.host_facts import HostFacts
from poprun.plan.instance_count import with_tasks_of_slurm
from poprun.plan.request import read_request
from poprun.plan.show import show_plan
from poprun.plan.values import PartitionVariables, Plan, Request, new_attempt
from poprun.reach.temporary_directories import temporary_directory
from poprun.result.recorder import Recorder
from poprun.result.verdict import Verdict
from poprun.run.attempt import Successor, run_attempt, wait_for_stdin
from poprun.run.context import RunContext
from poprun.run.restarts import Restarts
from poprun.supervise.guard_start import StartedGuard
from poprun.trace.job_trace import JobTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The stages of a run that change something; tests pass others."""

    # With the arguments of the functions of these names.
    preview: Callable[..., tuple[PartitionVariables | None, str]]
    reserve: Callable[..., reservation.DeviceReservation]
    prepare: Callable[..., Job]
    run_attempt: Callable[..., tuple[Verdict, Successor | None]]


def prepare(plan: Plan, files: list[str], context: RunContext) -> Job:
    """Return the job, and make the directories that the user names.

    Raises:
        PoprunError: The job cannot be started.
    """
    request, settings = plan.request, context.settings
    num_instances = request.topology.num_instances
    routes = output_routes.routes(plan, settings, context.caller_environ)
    width = routes.width_of_mark(num_instances)
    job = job_description.make_job(
        plan,
        settings,
        files,
        context.environ,
        routes=routes,
        terminals=terminal.choose_terminals(settings["tty"], width),
        umask=context.umask,
    )
    if request.output_folder is not None:
        make_files(request.output_folder, plan.attempt.number, num_instances)
    job_description.make_cache_directory(request)
    return job


STAGES = Stages(
    preview=reservation.preview,
    reserve=reservation.reserve,
    prepare=prepare,
    run_attempt=run_attempt,
)


def run(
    settings: Settings,
    programs: Sequence[Program],
    guard: StartedGuard | None,
    caller_environ: Mapping[str, str],
    recorder: Recorder,
    trace: JobTrace | None = None,
    stages: Stages = STAGES,
) -> int:
    """Run the programs of a job, or show what would be run; return the exit code.

    Args:
        guard: The guard that has been started; None for a dry run.
        caller_environ: The environment that poprun was started with.
        recorder: Writes the files of --result and --events.
        trace: Writes the file of --trace.
    """
    check_current_directory()
    words = words_of(programs)
    given = set(filter(settings.is_given, settings.entries))
    misplaced = explain_misplaced(words, given)
    context = RunContext(
        settings=with_tasks_of_slurm(settings, caller_environ),
        caller_environ=caller_environ,
        # For the files that poprun makes itself.
        umask=open_umask(),
        guard=guard,
        recorder=recorder,
        trace=trace,
        words=words,
    )
    check_is_only_rank(context.environ)
    with (
        closing(context.hosts),
        _traced(context),
        context.preparing,
        context.phase_line,
    ):
        request = _plan(programs, context)
        for note in misplaced:
            context.log.warn(note)
        if guard is None:
            return _dry_run(request, stages.preview(request, context.environ), context)
        return _run_job(request, guard, context, stages)


@contextmanager
def _traced(context: RunContext) -> Iterator[None]:
    """Write the trace of the run in the end, if it is to have one."""
    try:
        yield
    finally:
        if context.trace is not None:
            if failure := context.trace.write():
                context.log.error(failure)
            if sentence := context.trace.missing_calls():
                context.log.warn(sentence)


def _plan(programs: Sequence[Program], context: RunContext) -> Request:
    """Return the request, checked against the facts of the hosts."""
    context.phase_line.show("checking the hosts")
    context.enter("plan")
    request = read_request(
        context.settings,
        programs,
        context.environ,
        temporary_directory(context.environ),
        context.hosts.describe,
        reservation.find_host_servers,
        context.identity,
    )
    for note in (*request.notes, *output_routes.note_on_terminal(request)):
        context.log.warn(note)
    topology = request.topology
    context.preparing.set_shape(topology.num_instances, topology.num_replicas)
    return request


def _dry_run(
    request: Request,
    expected: tuple[PartitionVariables | None, str],
    context: RunContext,
) -> int:
    """Show what would be run; return the exit code.

    Args:
        expected: The partition that the job would be granted, and a note about it.
    """
    partition, note = expected
    attempt = new_attempt(request.identity, 0, request.facts[0])
    plan = make_plan(request, attempt, partition)
    return show_plan(plan, context.settings, context.log, partition_note=note)


def _check(request: Request, context: RunContext) -> list[str]:
    """Return the file of the program for each instance.

    Raises:
        PoprunError: There is no such file, or poprun cannot start the job here.
    """
    check_proc()
    wait_for_stdin(request.stdin)
    context.hosts.check_mpi(request.mpi)
    return context.hosts.find_programs(request, context.environ)


def _run_job(
    request: Request, guard: StartedGuard, context: RunContext, stages: Stages
) -> int:
    """Reserve, prepare and run a job, with its restarts; return the exit code."""
    log, phase_line = context.log, context.phase_line
    # A job that is refused must not reserve or show anything.
    context.enter("check")
    files = _check(request, context)
    context.enter("reserve IPUs")
    reserved = stages.reserve(
        request, context.environ, guard.tell, guard.pid, log, phase_line
    )

    def prepare_attempt(number: int, first: HostFacts) -> tuple[Plan, Job]:
        attempt = new_attempt(request.identity, number, first)
        plan = make_plan(request, attempt, reserved.partition)
        return plan, reserved.with_devices(stages.prepare(plan, files, context))

    starts = False
    context.enter("prepare")
    try:
        plan, job = prepare_attempt(0, request.facts[0])
        phase_line.hide()
        if code := show_plan(plan, context.settings, log, reserved.lines):
            return code
        starts = True
    finally:
        if not starts:
            reserved.cancel(guard.tell)
    context.enter("run")
    run_attempt = partial(stages.run_attempt, context=context)
    restarts = Restarts(context, request, prepare_attempt, run_attempt)
    return restarts.run(job, guard, plan, context.preparing.hand_over())
