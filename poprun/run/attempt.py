"""One attempt to run a job, from the start of its mpirun to the exit code.

Job -> AttemptEnd -> Verdict
"""

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from popdist import environment as env
from popdist.durations import read_duration
from poprun.errors import HostUnreachableError, LaunchError, OptionError
from poprun.helpers.end_actions import EndActions
from poprun.host.host_link import HostLink
from poprun.host.links import open_links
from poprun.host_specs import HostSpec
from poprun.job import output_routes
from poprun.job.output_routes import make_router
from poprun.job.values import Job
from poprun.log import Log
from poprun.output import terminal
from poprun.output.output_tap import OutputTap
from poprun.output.stdin import Stdin, describe_unread
from poprun.output.writer import write_text
from poprun.plan.values import Plan
from poprun.reach.own_host.out_of_memory import MemoryCounters
from poprun.reach.own_host.resource_limits import caller_limits
from poprun.result import conclusion
from poprun.result.formats import outcome_name
from poprun.result.progress import Progress
from poprun.result.verdict import Verdict, may_restart
from poprun.run.context import RunContext, make_log
from poprun.run.growth import RunningGrowth
from poprun.supervise.arrivals import Arrivals
from poprun.supervise.attempt_end import AttemptEnd
from poprun.supervise.clients.job_view import AttemptView
from poprun.supervise.clients.server import Clients
from poprun.supervise.event_log import EventLog
from poprun.supervise.guard_start import StartedGuard, start_guard
from poprun.supervise.host_search import HostSearch
from poprun.supervise.job_state import Cause, Reason
from poprun.supervise.mpirun_process import MpirunProcess
from poprun.supervise.supervisor import Supervisor
from poprun.wire.call_files import read_call, write_results
from poprun.wire.events import (
    AllMeasured,
    DebuggerReady,
    Event,
    Exited,
    FailedInFinalize,
    HostJoins,
    HostLost,
    HostsAvailable,
    Started,
)

# Gets the mark of the job, and says by a function why there are no more hosts.
MakeSearch = Callable[[str, Callable[[str], None]], HostSearch | None]
# Gets the plan and the job, and the same.
MakeGrowth = Callable[[Plan, Job, Callable[[str], None]], RunningGrowth | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Successor:
    """The things that another attempt takes over from a failed one."""

    # Undoes the shared resources if poprun ends before that attempt begins.
    guard: StartedGuard
    # They may stop the job meanwhile.
    clients: Clients
    # The names of the hosts that the attempt has lost, whether its instances may still
    # run on one of them, and when the last one was lost.
    lost_hosts: frozenset[str] = frozenset()
    may_run: bool = False
    lost_at: float = -inf
    # How many instances were started again during the attempt.
    num_restarts: int = 0
    # The hosts for which the attempt was stopped, if it did not fail; and a signal to
    # end the job that came after the attempt, 0 for none.
    growth: HostsAvailable | None = None
    stopped_by: int = 0
    # Whether the attempt counts as a failed one.
    has_failed: bool = True


def run_attempt(
    job: Job,
    guard: StartedGuard,
    plan: Plan,
    context: RunContext,
    *,
    restarts_left: int = 0,
    clients: Clients | None = None,
    make_search: MakeSearch = lambda mark, warn: None,
    make_growth: MakeGrowth = lambda plan, job, warn: None,
    changed: str = "",
) -> tuple[Verdict, Successor | None]:
    """Run one attempt of a job to its end, and report how it went.

    Args:
        restarts_left: How many restarts of --max-restarts are left.
        clients: The clients that the job had before, if it has served any.
        make_search: Returns the search for hosts with which the job is started again.
        make_growth: Returns the rules by which hosts join the running attempt.
        changed: Why the attempt before this one has ended, "" for the first.

    Raises:
        HostUnreachableError: A host was lost before anything was started.
    """
    # The shell may have put poprun in the background while it waited for IPUs.
    wait_for_stdin(job.stdin)
    hosts = plan.request.hosts
    here = os.uname().nodename if plan.request.names_hosts else hosts[0].name
    mpirun = MpirunProcess(job, guard, here, context.hosts.connections())
    call = read_call(context.caller_environ) if plan.request.names_hosts else b""
    try:
        memory_before = context.hosts.read_memory_counters(hosts)
        links = open_links(job, plan, context.hosts, mpirun, here, call)
    except LaunchError as error:
        raise HostUnreachableError(str(error)) from error
    context.recorder.begin_attempt(plan)
    mpirun.start()
    attempt = _RunningAttempt(
        job, plan, context, mpirun, links, restarts_left, make_growth
    )
    clients = clients or Clients(plan.request.identity)
    return attempt.run(clients, memory_before, make_search, changed)


def wait_for_stdin(stdin: Stdin) -> None:
    """Wait until poprun may read its terminal, if an instance gets its stdin.

    Raises:
        OptionError: poprun is in the background, and no shell can continue it.
    """
    if stdin.is_own and not terminal.wait_until_readable(0):
        raise OptionError(
            "--stdin would read the terminal, which another job is using, and no shell "
            "could continue poprun when it is free. Run poprun in the foreground, or "
            "give it another input, such as < /dev/null."
        )


class _RunningAttempt:
    """An attempt after the order to start mpirun."""

    def __init__(
        self,
        job: Job,
        plan: Plan,
        context: RunContext,
        mpirun: MpirunProcess,
        hosts: Sequence[HostLink],
        restarts_left: int,
        make_growth: MakeGrowth,
    ) -> None:
        job = replace(job, restarts_left=restarts_left)
        self._job, self._plan, self._context = job, plan, context
        self._mpirun, self._hosts = mpirun, hosts
        settings, environ = context.settings, context.caller_environ
        self._progress = Progress(
            len(job.specs),
            time.monotonic(),
            attempt=plan.attempt.number,
            least=job.least_instances,
        )
        self._router = make_router(
            job, environ, self._progress.text if settings.shows_progress else None
        )
        self._log = make_log(settings, environ, self._router.say)
        self._growth = make_growth(plan, job, self._log.warn)
        self._listeners = list(self._make_listeners())
        # popdist refuses a value that is no duration.
        stall = read_duration(environ.get(env.STALL_TIMEOUT, ""))
        self._stall_s = stall or env.DEFAULT_STALL_S
        # The guard of the next attempt.
        self._next_guard: StartedGuard | None = None
        # When a host was last lost.
        self._lost_at = -inf

    def run(
        self,
        clients: Clients,
        memory_before: Mapping[HostSpec, MemoryCounters],
        make_search: MakeSearch,
        changed: str,
    ) -> tuple[Verdict, Successor | None]:
        """Supervise the job, and report how it went.

        Args:
            memory_before: The counters of each host before mpirun was started.
        """
        tap = OutputTap()
        self._view = AttemptView(self._plan, tap.last_line, changed)
        clients.show(self._view, tap)
        growth = self._growth
        supervisor = Supervisor(
            self._job,
            self._mpirun,
            self._hosts,
            self._router,
            self._listen,
            clients,
            (lambda new: {}) if growth is None else growth.environs,
            make_search(self._job.mark, self._log.warn),
            None if growth is None else Arrivals(growth, self._log.warn),
        )
        supervisor.start()
        try:
            end = supervisor.run(self._before_end)
        finally:
            self._router.hide_status(forever=True)
        self._router.end()
        verdict = self._conclude(end, memory_before, supervisor)
        # A signal may have come after the guard of the next attempt was started. The
        # job has not failed then if it was to grow.
        may_follow = may_restart(end) and (verdict.grows or not supervisor.num_signals)
        if self._next_guard is not None and may_follow:
            clients.pause()
            return verdict, self._successor(
                self._next_guard, clients, end, verdict, supervisor.late_signal
            )
        self._end_job(verdict)
        clients.end(verdict.exit_code, verdict.sentence)
        return verdict, None

    def _end_job(self, verdict: Verdict) -> None:
        """End the job after this attempt, even if another one was to follow."""
        if self._next_guard is not None:
            # The router has written its last.
            log = Log(0, partial(write_text, 2), is_quiet=self._log.is_quiet)
            for failure in undo_job(self._job, self._next_guard):
                log.warn(failure)
        if verdict.grows:
            self._context.recorder.refuse(verdict.exit_code, verdict.sentence)

    def _successor(
        self,
        guard: StartedGuard,
        clients: Clients,
        end: AttemptEnd,
        verdict: Verdict,
        late_signal: int,
    ) -> Successor:
        growths = [e for e in end.events if isinstance(e, HostsAvailable)]
        lost = _lost_hosts(end.events)
        return Successor(
            guard=guard,
            clients=clients,
            lost_hosts=frozenset(event.host for event in lost),
            may_run=any(event.may_run for event in lost),
            lost_at=self._lost_at,
            num_restarts=end.state.membership.num_restarts,
            growth=growths[-1] if verdict.grows else None,
            has_failed=not verdict.grows,
            stopped_by=late_signal,
        )

    def _make_listeners(self) -> Iterator[Callable[[Event], None]]:
        """Yield the functions of others that are called with each event."""
        context, job = self._context, self._job
        yield self._progress.listen
        yield EventLog(
            self._log,
            keep_going=job.keep_going,
            names_hosts=len(self._hosts) > 1,
            debugged=job.stdin.debugged,
        ).listen
        if self._growth is not None:
            yield self._growth.listen
        yield context.recorder.listen
        if context.trace is not None:
            names = {rank: host.name for host in self._hosts for rank in host.ranks}
            context.trace.begin_attempt(self._plan.attempt.number, names)
            yield context.trace.listen

    def _listen(self, event: Event) -> None:
        """Show what an event says of the instances, and pass it on."""
        match event:
            case Exited(status=status, by_itself=True) if status:
                self._router.show_failed(event.rank)
            case FailedInFinalize(rank=rank):
                self._router.show_failed(rank)
            case HostLost():
                self._lost_at = time.monotonic()
            case HostJoins(ranks=ranks) if self._growth is not None:
                self._plan = self._growth.plan
                self._view.extend(self._plan, ranks)
                more = output_routes.routes(
                    self._plan, self._context.settings, self._context.caller_environ
                )
                self._router.name_writers(more.writers)
            case AllMeasured():
                for sentence in self._progress.new_stalls(self._stall_s):
                    advice = "'popctl dump' shows where each of them is."
                    self._log.warn(f"{sentence} {advice}")
        for listen in self._listeners:
            listen(event)

    def _before_end(self, end: AttemptEnd, hosts: Collection[HostLink]) -> None:
        """Start the guard of the next attempt, if one follows, and collect the trace.

        All instances and mpirun have ended. The next guard takes over the shared
        resources before this guard undoes the rest.
        """
        verdict = self._judge(end)
        has_restarts = end.state.membership.restarts_left > 0
        is_followed = verdict.grows or (has_restarts and verdict.has_failed)
        if is_followed and may_restart(end):
            try:
                # It gets the limit that the first guard got.
                with caller_limits(self._job.descriptor_limits):
                    self._next_guard = start_guard(self._context.caller_environ)
            except LaunchError as error:
                self._log.warn(f"The job is not started again: {error}")
            else:
                self._mpirun.hand_over(self._next_guard)
        if self._context.trace is not None:
            self._context.trace.collect(hosts)
        for host in hosts:
            write_results(self._context.caller_environ, host.results)

    def _judge(self, end: AttemptEnd) -> Verdict:
        return conclusion.judge_attempt(end, self._plan, self._router)

    def _conclude(
        self,
        end: AttemptEnd,
        memory_before: Mapping[HostSpec, MemoryCounters],
        supervisor: Supervisor,
    ) -> Verdict:
        """Report and record how the attempt went; return it with its cause."""
        verdict = self._judge(end)
        if end.state.cause == Cause(reason=Reason.TIMEOUT):
            sentences = [verdict.sentence, *self._progress.describe_waits()]
            verdict = replace(verdict, sentence=" ".join(sentences))
        settings, stdin = self._context.settings, self._plan.request.stdin
        if not (settings.is_given("stdin") or stdin.debugs):
            _warn_of_unread_input(self._log)
        _warn_of_missing_debugger(self._log, stdin.debugged, end.events)
        is_quiet = settings["summary"] is None and settings["quiet"]

        def memory_change(rank: int) -> MemoryCounters:
            host = self._plan.assignments[rank].host
            now = self._context.hosts[host].read_memory_counters()
            joined = {} if self._growth is None else self._growth.memory
            return now.since(joined.get(host) or memory_before[host])

        cause = conclusion.report_attempt(
            verdict,
            end,
            self._router,
            self._log,
            memory_change,
            debug=settings["debug"],
            summary_text=conclusion.summarize(
                verdict,
                end,
                asked=False if is_quiet else settings["summary"],
                columns=terminal.own_size()[1] if os.isatty(2) else None,
            ),
        )
        supervisor.write_out()
        supervisor.close()
        name = outcome_name(end.state, verdict)
        self._context.recorder.end_attempt(name, verdict, cause)
        return replace(verdict, sentence=cause)


def _lost_hosts(events: Sequence[Event]) -> list[HostLost]:
    """Return the losses of the hosts that have not joined again."""
    lost: dict[str, HostLost] = {}
    for event in events:
        if isinstance(event, HostLost):
            lost[event.host] = event
        elif isinstance(event, HostJoins):
            lost.pop(event.host, None)
    return list(lost.values())


def undo_job(job: Job, guard: StartedGuard) -> list[str]:
    """Undo the shared resources of a job; return a sentence for each failure.

    Args:
        guard: Has the order to undo them when poprun ends; it is withdrawn.
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
