"""The end of an attempt: AttemptEnd -> Verdict, and Verdict -> its report."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace

from poprun.errors import OUTPUT_CLOSED, UNWRITTEN
from poprun.helpers.processes import exit_code
from poprun.log import Log
from poprun.output.router import OutputRouter
from poprun.plan.values import Plan
from poprun.reach.own_host.out_of_memory import MemoryCounters
from poprun.result import report, summary
from poprun.result.instances import instance_ends
from poprun.result.verdict import MACHINERY, Verdict, judge
from poprun.supervise.attempt_end import AttemptEnd
from poprun.supervise.job_state import Reason
from poprun.wire.events import MpirunStarted

# A shell, and other programs that start one, exit with 128 and the signal's number.
KILLED = 128 + signal.SIGKILL


def judge_attempt(end: AttemptEnd, plan: Plan, router: OutputRouter) -> Verdict:
    """Return how an attempt ended: its instances, mpirun, and their output.

    An event that an elastic job has survived is no failure.
    """
    instances = instance_ends(end, plan, router.tail)
    end = replace(end, events=end.unsurvived_events)
    status = end.mpirun_status
    code = 1 if status is None else exit_code(status)
    text = end.mpirun_output.decode(errors="replace")
    mpirun = plan.request.mpi.explain(text, code)
    cause = end.state.cause
    if cause is None or cause.reason in MACHINERY:
        stderr = ((i.rank, i.stderr.decode(errors="replace")) for i in instances)
        mpirun = plan.request.mpi.explain_abort(mpirun, stderr)
    verdict = judge(end, instances, mpirun)
    code = verdict.exit_code
    if not code and router.closed:
        code = OUTPUT_CLOSED
    elif not code and (router.failure is not None or router.lost):
        code = UNWRITTEN
    return replace(verdict, exit_code=code, mpirun_text=mpirun.text)


def report_attempt(
    verdict: Verdict,
    end: AttemptEnd,
    router: OutputRouter,
    log: Log,
    memory_change: Callable[[int], MemoryCounters],
    *,
    debug: bool,
    summary_text: str = "",
) -> str:
    """Report how an attempt ended, the cause last; return the cause.

    Args:
        memory_change: Returns how the counters of an instance's host have changed
            during the attempt.
        summary_text: A text about all instances.
    """
    _log_mpirun(end, verdict, log)
    for warning in verdict.warnings:
        log.warn(warning)
    _report_lost_output(router, log)
    if debug and verdict.mpirun_text and not verdict.quote_mpirun:
        log.say(f"mpirun printed:\n{verdict.mpirun_text}")
    first, memory = verdict.first, MemoryCounters()
    if first is not None and first.exit_code == KILLED:
        memory = memory_change(first.rank)
    is_in_sight = first is not None and router.is_in_sight(first.rank)
    reported = replace(verdict, also=()) if log.is_quiet else verdict
    *more, cause = report.render(reported, memory, is_in_sight=is_in_sight) or [""]
    for sentence in (*more, *filter(None, [summary_text])):
        log.say(sentence, even_if_quiet=True)
    # A growth was announced.
    if cause and not verdict.grows:
        log.error(cause)
    return cause


def summarize(
    verdict: Verdict, end: AttemptEnd, *, asked: bool | None, columns: int | None
) -> str:
    """Return the text of --summary, "" where none is to be shown.

    Args:
        asked: Its value; None if it is not given.
        columns: The width of the terminal; None without one.
    """
    if asked:
        return summary.table(verdict.instances, columns)
    cause = end.state.cause
    is_stopped = cause is not None and cause.reason in (
        Reason.INTERRUPTED,
        Reason.OUTPUT_CLOSED,
        Reason.GROWTH,
    )
    is_useful = verdict.has_failed and end.state.started and not is_stopped
    if asked is False or not is_useful or len(verdict.instances) == 1:
        return ""
    return summary.in_a_line(verdict.instances)


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


def _log_mpirun(end: AttemptEnd, verdict: Verdict, log: Log) -> None:
    """Log how mpirun ended, as the original does.

    The supervisors of the instances end with 0, and mpirun with them. Without them
    mpirun would have ended with the exit code of the failed instance.
    """
    started = [e.pid for e in end.events if isinstance(e, MpirunStarted)]
    if not started or end.mpirun_status is None:
        return
    code = exit_code(end.mpirun_status)
    if not code and verdict.first is not None:
        code = verdict.first.exit_code or 0
    log.info(f"mpirun (PID {started[-1]}) terminated with exit code {code}")
