"""One attempt to run a job, from the start of its mpirun to the exit code.

Job -> AttemptEnd -> Verdict -> Attempted
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from popdist import environment as env
from popdist.durations import read_duration
from poprun.color import is_dumb, uses_color
from poprun.errors import LaunchError
from poprun.helpers.end_actions import EndActions
from poprun.host.host_link import HostLink
from poprun.job import output_routes as output
from poprun.job.resource_limits import caller_limits
from poprun.job.values import Job
from poprun.log import Log
from poprun.options.settings import Settings
from poprun.output import terminal
from poprun.output.lines.screen import Screen
from poprun.output.output_tap import OutputTap
from poprun.output.router import OutputRouter
from poprun.output.stdin import describe_unread
from poprun.output.writer import write_text
from poprun.plan.hosts import HostSpec
from poprun.plan.values import Plan
from poprun.reach.out_of_memory import MemoryCounters
from poprun.result import conclusion
from poprun.result.formats import outcome_name
from poprun.result.progress import Progress
from poprun.result.verdict import Verdict, may_restart
from poprun.supervise.clients.job_view import JobView
from poprun.supervise.clients.server import Clients
from poprun.supervise.event_log import EventLog
from poprun.supervise.guard_start import StartedGuard, start_guard
from poprun.supervise.mpirun_process import MpirunProcess
from poprun.supervise.stopping import Cause, Reason
from poprun.supervise.supervisor import AttemptEnd, Supervisor
from poprun.wire.events import (
    AllMeasured,
    DebuggerReady,
    Event,
    Exited,
    FailedInFinalize,
    HostLost,
    Started,
)

if TYPE_CHECKING:
    from poprun.run.stages import RunContext

Listener = Callable[[Event], None]
# As in popdist/settings.py.
STALL_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempted:
    """How an attempt ended, and whether another one is to follow."""

    exit_code: int
    # Why, as the report says it; "" for a success.
    cause: str = ""
    # The guard that has what the attempts of the job share; None if no other follows.
    successor: StartedGuard | None = None
    # And the clients of the job, who may stop it meanwhile.
    clients: Clients | None = None
    lost_hosts: bool = False


class _Succession:
    """Hands what the attempts share over to another guard, if another attempt follows.

    Args:
        judge: Returns how the attempt went, from what is known of its end.
        start: Starts a guard; None if there are no attempts left.
    """

    def __init__(
        self,
        mpirun: MpirunProcess,
        limits: tuple[int, int],
        judge: Callable[[AttemptEnd], Verdict],
        start: Callable[[], StartedGuard] | None,
    ) -> None:
        self._mpirun = mpirun
        self._limits = limits
        self._judge = judge
        self._start = start
        self.guard: StartedGuard | None = None
        # Why there is none, should that be an error.
        self.failure = ""

    def hand_over(self, ended: AttemptEnd) -> None:
        if self._start is None or not may_restart(ended):
            return
        if not self._judge(ended).has_failed:
            return
        try:
            # It gets the limit that the first guard got.
            with caller_limits(self._limits):
                self.guard = self._start()
        except LaunchError as error:
            self.failure = str(error)
        else:
            self._mpirun.hand_over(self.guard)


def supervise_attempt(
    job: Job,
    mpirun: MpirunProcess,
    hosts: Sequence[HostLink],
    plan: Plan,
    context: "RunContext",
    memory_before: Mapping[HostSpec, MemoryCounters],
    *,
    may_follow: bool = False,
    clients: Clients | None = None,
) -> Attempted:
    """Supervise a job whose mpirun starts, and report how it went.

    Args:
        memory_before: The counters of each host before mpirun was started.
        may_follow: Whether another attempt may follow if this one fails.
        clients: Those of the attempt before.
    """
    settings, environ = context.settings, context.caller_environ
    progress = Progress(len(job.specs), time.monotonic())
    router = _make_router(plan, settings, environ, progress)
    has_color = uses_color(settings["color"], environ, 2)
    log = Log(
        settings.verbosity,
        router.say,
        has_color=has_color,
        is_quiet=settings["quiet"],
    )
    stall_s = _stall_timeout(environ)
    listeners: list[Listener] = [
        progress.listen,
        partial(_show_failed, router),
        partial(_warn_of_stalls, progress, stall_s, log),
    ]
    listeners += _listeners(job, plan, context, hosts, log)
    clients = _clients_of(plan, clients)
    supervisor = Supervisor(
        job, mpirun, hosts, router, partial(_tell, listeners), clients
    )
    judge = partial(conclusion.judge_attempt, plan=plan, router=router)
    start = partial(start_guard, environ) if may_follow else None
    succession = _Succession(mpirun, job.descriptor_limits, judge, start)

    def before_end(ended: AttemptEnd) -> None:
        succession.hand_over(ended)
        if context.trace is not None:
            context.trace.collect(hosts, job.directory)

    supervisor.start()
    try:
        ended = supervisor.run(before_end)
    finally:
        router.hide_status(forever=True)
    router.end()
    if succession.failure:
        log.warn(f"The job is not started again: {succession.failure}")
    verdict = judge(ended)
    if ended.course.cause == Cause(reason=Reason.TIMEOUT):
        sentences = [verdict.sentence, *progress.describe_waits()]
        verdict = replace(verdict, sentence=" ".join(sentences))
    cause = _report(verdict, ended, plan, context, router, log, memory_before)
    supervisor.write_out()
    supervisor.close()
    if context.recorder is not None:
        name = outcome_name(ended.course, verdict)
        context.recorder.end_attempt(name, verdict, cause)
    end = _attempt_end(job, ended, verdict, cause, succession.guard, supervisor, log)
    if end.successor is None:
        clients.end(verdict.exit_code, cause)
        return end
    clients.pause()
    return replace(end, clients=clients)


def _clients_of(plan: Plan, clients: Clients | None) -> Clients:
    """Return the clients of the attempt, who are shown its instances.

    Args:
        clients: Those of the attempt before.
    """
    tap = OutputTap()
    clients = clients or Clients(plan.request.identity)
    clients.show(JobView(plan, tap.last_line), tap)
    return clients


def _listeners(
    job: Job,
    plan: Plan,
    context: "RunContext",
    hosts: Sequence[HostLink],
    log: Log,
) -> Iterator[Listener]:
    """Yield what writes events down: to the log, and to files that are asked for."""
    yield EventLog(
        log,
        keep_going=job.keep_going,
        names_hosts=len(hosts) > 1,
        debugged=job.stdin.debugged,
    ).listen
    if context.recorder is not None:
        yield context.recorder.listen
    if context.trace is not None:
        host_names = {rank: host.name for host in hosts for rank in host.ranks}
        context.trace.begin_attempt(plan.attempt.number, host_names)
        yield context.trace.listen


def _tell(listeners: Sequence[Listener], event: Event) -> None:
    for listen in listeners:
        listen(event)


def _stall_timeout(environ: Mapping[str, str]) -> float:
    """Return after how many seconds popdist reports a wait.

    popdist refuses a value that is no duration.
    """
    return read_duration(environ.get(env.STALL_TIMEOUT, "")) or STALL_S


def _warn_of_stalls(progress: Progress, least_s: float, log: Log, event: Event) -> None:
    if isinstance(event, AllMeasured):
        for sentence in progress.new_stalls(least_s):
            log.warn(f"{sentence} 'popctl dump' shows where each of them is.")


def _show_failed(router: OutputRouter, event: Event) -> None:
    match event:
        case Exited(rank=rank, status=status, by_itself=True) if status:
            router.show_failed(rank)
        case FailedInFinalize(rank=rank):
            router.show_failed(rank)


def _report(
    verdict: Verdict,
    ended: AttemptEnd,
    plan: Plan,
    context: "RunContext",
    router: OutputRouter,
    log: Log,
    memory_before: Mapping[HostSpec, MemoryCounters],
) -> str:
    """Say how an attempt went; return the cause."""
    settings = context.settings
    stdin = plan.request.stdin
    if not (settings.is_given("stdin") or stdin.debugs):
        _warn_of_unread_input(log)
    _warn_of_missing_debugger(log, stdin.debugged, ended.events)
    columns = terminal.own_size()[1] if os.isatty(2) else None
    asked = settings["summary"]
    if asked is None and settings["quiet"]:
        asked = False
    return conclusion.report_attempt(
        verdict,
        ended,
        plan,
        router,
        log,
        memory_before,
        lambda host: context.hosts[host].read_memory_counters(),
        debug=settings["debug"],
        summary_text=conclusion.summarize(verdict, ended, asked=asked, columns=columns),
    )


def _attempt_end(
    job: Job,
    ended: AttemptEnd,
    verdict: Verdict,
    cause: str,
    successor: StartedGuard | None,
    supervisor: Supervisor,
    log: Log,
) -> Attempted:
    """Return how an attempt ended; no other follows if a signal came since."""
    # What came after the guard had been started counts, too.
    is_stopped = supervisor.was_stopped or not may_restart(ended)
    if successor is not None and is_stopped:
        # The router has written its last.
        late_log = Log(0, lambda text: write_text(2, text), is_quiet=log.is_quiet)
        for failure in undo_job(job, successor):
            late_log.warn(failure)
        successor = None
    return Attempted(
        exit_code=verdict.exit_code,
        cause=cause,
        successor=successor,
        lost_hosts=any(isinstance(event, HostLost) for event in ended.events),
    )


def undo_job(job: Job, guard: StartedGuard) -> list[str]:
    """Undo what the attempts of a job share; return a sentence for each failure.

    Args:
        guard: Would undo it when poprun ends, and need not do so any more.
    """
    failures = []
    for item in reversed(job.job_resources):
        is_undone = item.undo is not None and item.undo()
        failure = "" if is_undone else item.end_action.perform()
        if failure:
            failures.append(failure)
        else:
            guard.tell(EndActions().withdraw(item.end_action))
    return failures


def _make_router(
    plan: Plan,
    settings: Settings,
    environ: Mapping[str, str],
    progress: Progress,
) -> OutputRouter:
    has_status = settings.shows_progress and terminal.has_status_line(environ)
    # What the user types on the terminal would appear after the status.
    has_status &= not (plan.request.stdin.is_own and os.isatty(0))
    return OutputRouter(
        output.routes(plan, settings, environ),
        screens=_screens(environ),
        status=progress.text if has_status else None,
    )


def _screens(environ: Mapping[str, str]) -> dict[str, Screen]:
    """Return what is known of the terminals that poprun writes to."""
    if is_dumb(environ):
        return {}
    _, columns = terminal.own_size()
    named = (("stdout", 1), ("stderr", 2))
    return {name: Screen(columns) for name, number in named if os.isatty(number)}


def _warn_of_missing_debugger(
    log: Log, rank: int | None, events: Sequence[Event]
) -> None:
    ran = any(isinstance(e, Started) and e.rank == rank for e in events)
    if ran and not any(isinstance(event, DebuggerReady) for event in events):
        log.warn(
            f"--pdb {rank} had no effect: instance {rank} did not run CPython "
            "3.6 or later with sitecustomize and pdb."
        )


def _warn_of_unread_input(log: Log) -> None:
    if unread := describe_unread():
        log.warn(
            f"No instance reads the standard input, which has {unread}. Add --stdin 0 "
            "to let instance 0 read it, or --stdin all to give each instance a copy."
        )
