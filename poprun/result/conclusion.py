"""The end of an attempt: AttemptEnd -> Outcome, and Outcome -> its report."""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from poprun.errors import OUTPUT_CLOSED, UNWRITTEN
from poprun.helpers.processes import exit_code
from poprun.log import Log
from poprun.mpirun import adapter, explain_abort
from poprun.output.router import OutputRouter
from poprun.plan.hosts import HostSpec
from poprun.plan.values import Plan
from poprun.reach.out_of_memory import MemoryCounters
from poprun.result import report, summary
from poprun.result.outcome import MACHINERY, Outcome, has_failed, judge
from poprun.result.summary import InstanceEnd
from poprun.supervise.stopping import Reason
from poprun.supervise.supervisor import AttemptEnd
from poprun.wire.events import Exited, MpirunStarted, TorchGroupsMade

# A shell, and other programs that start one, exit with 128 and the signal's number.
KILLED = 128 + signal.SIGKILL


def judge_attempt(ended: AttemptEnd, plan: Plan, router: OutputRouter) -> Outcome:
    """Return how an attempt ended: its instances, mpirun, and their output."""
    status = ended.mpirun_status
    code = 1 if status is None else exit_code(status)
    text = ended.mpirun_output.decode(errors="replace")
    verdict = adapter(plan.request.mpi.flavour).explain(text, code)
    cause = ended.course.cause
    if cause is None or cause.reason in MACHINERY:
        ranks = range(len(plan.assignments))
        stderr = ((r, router.tail(r).decode(errors="replace")) for r in ranks)
        verdict = explain_abort(plan.request.mpi, verdict, stderr)
    hosts, elsewhere = [], []
    if plan.request.names_hosts:
        hosts = [a.host.name for a in plan.assignments]
        ranks = range(len(hosts))
        elsewhere = [r for r in ranks if not plan.request.facts_of(r).is_own_host]
    programs = plan.request.program_names
    outcome = judge(
        ended.course, ended.events, status, verdict, hosts, elsewhere, programs
    )
    code = outcome.exit_code
    if not code and router.closed:
        code = OUTPUT_CLOSED
    elif not code and (router.failure is not None or router.lost):
        code = UNWRITTEN
    return replace(outcome, exit_code=code, mpirun_text=verdict.text)


def report_attempt(
    outcome: Outcome,
    ended: AttemptEnd,
    plan: Plan,
    router: OutputRouter,
    log: Log,
    memory_before: Mapping[HostSpec, MemoryCounters],
    read_memory_counters: Callable[[HostSpec], MemoryCounters],
    *,
    debug: bool,
    summary_text: str = "",
) -> str:
    """Report how an attempt ended, the cause last; return the cause.

    Args:
        memory_before: The counters of each host when the attempt began.
        read_memory_counters: Returns the counters of a host now.
        summary_text: A text about all instances.
    """
    _log_mpirun(ended, outcome, log)
    for warning in outcome.warnings:
        log.warn(warning)
    _report_lost_output(router, log)
    if debug and outcome.mpirun_text and not outcome.quote_mpirun:
        log.say(f"mpirun printed:\n{outcome.mpirun_text}")
    evidence = _evidence(outcome, ended, plan, router)
    if outcome.first is not None and outcome.first.exit_code == KILLED:
        host = plan.assignments[outcome.first.rank].host
        after = read_memory_counters(host)
        before = memory_before[host]
        if after.kills > before.kills:
            evidence = replace(evidence, out_of_memory=after)
        elif after.host_kills is not None and before.host_kills is not None:
            kills = after.host_kills - before.host_kills
            evidence = replace(evidence, host_kills=kills)
    reported = replace(outcome, also=()) if log.is_quiet else outcome
    *more, cause = report.render(reported, evidence) or [""]
    for sentence in (*more, *filter(None, [summary_text])):
        log.say(sentence, even_if_quiet=True)
    if cause:
        log.error(cause)
    return cause


def with_stderr(ends: Sequence[InstanceEnd], router: OutputRouter) -> list[InstanceEnd]:
    """Return the ends, those of failed instances with the end of their stderr."""
    complete = []
    for end in ends:
        if end.state == summary.FAILED:
            lines = report.stderr_lines(router.tail(end.rank))
            text = report.traceback_text(lines)
            tail = "\n".join(report.last_lines(lines))
            end = replace(end, traceback=text, stderr_tail=tail)
        complete.append(end)
    return complete


def summarize(
    ends: Sequence[InstanceEnd],
    ended: AttemptEnd,
    outcome: Outcome,
    *,
    asked: bool | None,
    columns: int | None,
) -> str:
    """Return the text of --summary, "" where none is to be shown.

    Args:
        asked: Its value; None if it is not given.
        columns: The width of the terminal; None without one.
    """
    if asked:
        return summary.table(ends, columns)
    cause = ended.course.cause
    is_stopped = cause is not None and cause.reason in (
        Reason.INTERRUPTED,
        Reason.OUTPUT_CLOSED,
    )
    if asked is False or is_stopped or not ended.course.started:
        return ""
    if not has_failed(outcome):
        return ""
    return summary.in_a_line(ends) if len(ends) > 1 else ""


def _report_lost_output(router: OutputRouter, log: Log) -> None:
    if router.failure is not None:
        output, number = router.failure
        log.error(
            f"Output was lost: {output} cannot be written: "
            f"{os.strerror(number)}. The instances were not stopped because of that."
        )
    for stream, size in router.lost.items():
        log.error(
            f"Output was lost: {stream} was not read, so at least the last "
            f"{size} bytes were not written."
        )


def _log_mpirun(ended: AttemptEnd, outcome: Outcome, log: Log) -> None:
    """Log how mpirun ended, as the original does.

    The supervisors of the instances end with 0, and mpirun with them. So the exit code
    of an instance that failed, which mpirun would have ended with, stands in its place.
    """
    started = [e.pid for e in ended.events if isinstance(e, MpirunStarted)]
    if not started or ended.mpirun_status is None:
        return
    code = exit_code(ended.mpirun_status)
    if not code and outcome.first is not None:
        code = outcome.first.exit_code
    log.info(f"mpirun (PID {started[-1]}) terminated with exit code {code}")


def _evidence(
    outcome: Outcome,
    ended: AttemptEnd,
    plan: Plan,
    router: OutputRouter,
) -> report.Evidence:
    programs = plan.request.program_names
    if outcome.first is None:
        return report.Evidence(programs=programs)
    rank = outcome.first.rank
    exits = [e for e in ended.events if isinstance(e, Exited) and e.rank == rank]
    return report.Evidence(
        host=plan.assignments[rank].host.name,
        programs=programs,
        stderr=router.tail(rank),
        just_shown=router.is_in_sight(rank),
        peak_kib=max((e.peak_kib for e in exits), default=0),
        at_cpu_limit=any(e.at_cpu_limit for e in exits),
        is_elsewhere=not plan.request.facts_of(rank).is_own_host,
        lacks_faulthandler=any(e.lacks_faulthandler for e in exits),
        uses_torch_groups=TorchGroupsMade(rank=rank) in ended.events,
        stdin_advice=plan.request.stdin.advice_for(rank),
    )
