"""One run of poprun: the order of its stages, and nothing else.

settings -> Request -> DeviceReservation -> Plan -> Job -> Verdict -> exit code
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial

from poprun.helpers.own_process import open_umask
from poprun.job import reservation
from poprun.mpirun.environment import check_is_only_rank
from poprun.options.programs import Program, explain_misplaced, words_of
from poprun.options.settings import Settings
from poprun.plan.assignments import make_plan
from poprun.plan.directories import check_current_directory
from poprun.plan.instance_count import with_tasks_of_slurm
from poprun.plan.show import show_plan
from poprun.plan.values import PartitionVariables, Request, new_attempt
from poprun.result.recorder import Recorder
from poprun.run.attempt import run_attempt
from poprun.run.context import RunContext
from poprun.run.planner import Planner
from poprun.run.preparation import Preparation, Stages, prepare
from poprun.run.restarts import Restarts
from poprun.supervise.guard_start import StartedGuard
from poprun.trace.job_trace import JobTrace

STAGES = Stages(
    preview=reservation.preview,
    reserve=reservation.reserve,
    refusal_of_more=reservation.refusal_of_more,
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
        planner = Planner(programs, context)
        request = planner.first_request(guard)
        given = set(filter(settings.is_given, settings.entries))
        for note in explain_misplaced(words, given):
            context.log.warn(note)
        if guard is None:
            return _dry_run(request, stages.preview(request, context.environ), context)
        preparation = Preparation(request, guard, context, stages, planner)
        return _run_job(preparation, guard, context, stages)


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


def _run_job(
    preparation: Preparation,
    guard: StartedGuard,
    context: RunContext,
    stages: Stages,
) -> int:
    """Prepare and run a job, with its restarts; return the exit code."""
    starts = False
    context.enter("prepare")
    try:
        plan, job = preparation.prepare()
        context.phase_line.hide()
        lines = preparation.lines
        if code := show_plan(plan, context.settings, context.log, lines):
            return code
        starts = True
    finally:
        if not starts:
            preparation.cancel(guard)
    context.enter("run")
    run_attempt = partial(stages.run_attempt, context=context)
    restarts = Restarts(context, preparation, run_attempt)
    return restarts.run(job, guard, plan, context.preparing.hand_over())
