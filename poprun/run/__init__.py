"""One run of poprun: the order of its stages, and nothing else.

settings -> Request -> DeviceReservation -> Plan -> Job -> Verdict -> exit code
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial

from poprun.helpers.own_process import open_umask
from poprun.job import output_routes, reservation
from poprun.mpirun.environment import check_is_only_rank
from poprun.options.programs import Program, explain_misplaced, words_of
from poprun.options.settings import Settings
from poprun.plan.assignments import make_plan
from poprun.plan.directories import check_current_directory
from poprun.plan.elastic import is_elastic, reform_refusal
from poprun.plan.instance_count import with_tasks_of_slurm
from poprun.plan.request import read_request
from poprun.plan.show import show_plan
from poprun.plan.values import Describe, PartitionVariables, Request, new_attempt
from poprun.reach.temporary_directories import temporary_directory
from poprun.result.recorder import Recorder
from poprun.run.attempt import run_attempt
from poprun.run.context import RunContext
from poprun.run.elastic_hosts import ElasticHosts
from poprun.run.preparation import Preparation, Stages, prepare
from poprun.run.restarts import Restarts
from poprun.supervise.guard_start import StartedGuard
from poprun.trace.job_trace import JobTrace
from poprun.wire.events import HostsAvailable

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
        hosts = None
        if is_elastic(context.settings):
            hosts = ElasticHosts(context, len(programs))
        plan = partial(_plan, programs, context, hosts)
        request = plan(guard)
        for note in misplaced:
            context.log.warn(note)
        if guard is None:
            return _dry_run(request, stages.preview(request, context.environ), context)
        preparation = Preparation(
            request,
            guard,
            context,
            stages,
            hosts,
            partial(plan, again=True),
            partial(_read_request, programs, context, hosts),
        )
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


def _plan(
    programs: Sequence[Program],
    context: RunContext,
    hosts: ElasticHosts | None,
    guard: StartedGuard | None,
    lost: Collection[str] = (),
    growth: HostsAvailable | None = None,
    *,
    again: bool = False,
) -> Request:
    """Return the request, checked against the facts of the hosts.

    Args:
        hosts: The hosts of an elastic job; None for a job that always has the same.
        guard: None for a dry run.
        lost: The hosts that the last attempt has lost.
        growth: The hosts for which it was stopped.
        again: Whether an attempt has run before.
    """
    settings = context.settings
    context.phase_line.show("checking the hosts")
    if not again:
        context.enter("plan")
    if hosts is not None:
        settings = hosts.settings_of_attempt(guard, lost, growth)
    request = _read_request(programs, context, hosts, settings, context.hosts.describe)
    if again:
        return request
    notes = (*request.notes, *output_routes.note_on_terminal(request))
    if hosts is None and settings["fixed-replicas"]:
        notes += ("--fixed-replicas has no effect on a job that is not elastic.",)
    if request.reform_refusal and hosts is not None and not settings["max-restarts"]:
        notes += ("Without --max-restarts, the loss of a host ends the job.",)
    for note in notes:
        context.log.warn(note)
    topology = request.topology
    context.preparing.set_shape(topology.num_instances, topology.num_replicas)
    return request


def _read_request(
    programs: Sequence[Program],
    context: RunContext,
    hosts: ElasticHosts | None,
    settings: Settings,
    describe: Describe,
) -> Request:
    """Return the request for settings that are those of one attempt.

    Args:
        describe: Returns the facts of each host.
    """
    request = read_request(
        settings,
        programs,
        context.environ,
        temporary_directory(context.environ),
        describe,
        reservation.find_host_servers,
        context.identity,
    )
    if hosts is None:
        return request
    refusal = reform_refusal(request, settings)
    return replace(
        request,
        arguments=replace(request.arguments, survives=not refusal),
        reform_refusal=refusal,
        least_instances=hosts.bounds.least_instances,
        least_hosts=hosts.bounds.least_hosts,
    )


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
