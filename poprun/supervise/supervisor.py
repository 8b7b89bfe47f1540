"""Supervise a job: the loop that waits for events and acts on them.

It owns poprun's signals, the instances' streams and the standard input, and waits for
the descriptors of mpirun, the hosts, the streams and the output. stopping decides what
follows from an event; the listener shows it. The loop knows of a host only what
host/host_link.py names.
"""

import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from math import inf

from poprun.host.host_link import HostLink
from poprun.job.values import Job
from poprun.output import waiter
from poprun.output.router import OutputRouter
from poprun.output.stdin import StdinFeeder
from poprun.output.streams import Streams
from poprun.output.terminal import is_foreground, wait_until_readable
from poprun.output.waiter import READ, Interest, LoopPart
from poprun.supervise import job_state, membership, stopping
from poprun.supervise.arrivals import Arrivals
from poprun.supervise.attempt_end import AttemptEnd
from poprun.supervise.clients.server import Clients, Controls
from poprun.supervise.drain import drain, reader_timeout
from poprun.supervise.host_search import HostSearch
from poprun.supervise.hosts import Hosts
from poprun.supervise.job_state import JobState, Phase
from poprun.supervise.member_changes import Environs, MemberChanges
from poprun.supervise.mpirun_process import MpirunProcess
from poprun.supervise.signals import ENDING_SIGNALS, PASSED_ON, Signals
from poprun.supervise.stacks import Stacks
from poprun.wire import protocol
from poprun.wire.events import (
    AllMeasured,
    CanReform,
    Connected,
    DebuggerInterrupted,
    DevicesLost,
    Event,
    Exited,
    HostJoins,
    HostLost,
    Interrupted,
    MpirunExited,
    MpirunStarted,
    OutputClosed,
    PromptOver,
    PromptShown,
    ReformAsked,
    ReformEnded,
    Refused,
    Rejected,
    ShimLost,
    StacksAvailable,
    StacksShown,
    Started,
    Tick,
    TorchGroupsMade,
    UsageMeasured,
)

# When the instances are measured for the status line: short jobs need none of it.
FIRST_MEASURE_S, MEASURE_INTERVAL_S = 5.0, 2.0
# The same for torch's process groups, which do not report long waits themselves, and
# how long the answers of other hosts may take.
GROUPS_INTERVAL_S, ANSWERS_S = 10.0, 1.0
# These come without end: any user can cause the first, and a program the others.
UNCOUNTED = (Rejected, CanReform, ReformAsked, ReformEnded)


class Supervisor:
    """One attempt of a job, from its start to its end.

    Args:
        hosts: Have all instances of the job among them.
        listen: Is called with each event after it has been acted on; must not wait.
        environs: Is called for each generation of an elastic job after the first.
        search: Looks for hosts for which the job is stopped; None if it may not grow.
        arrivals: Looks for hosts that join the running instances, likewise.
    """

    def __init__(
        self,
        job: Job,
        mpirun: MpirunProcess,
        hosts: Sequence[HostLink],
        router: OutputRouter,
        listen: Callable[[Event], None],
        clients: Clients,
        environs: Environs = lambda _: {},
        search: HostSearch | None = None,
        arrivals: Arrivals | None = None,
    ) -> None:
        self._job, self._search, self._arrivals = job, search, arrivals
        self._mpirun, self._hosts, self._clients = mpirun, Hosts(hosts), clients
        self._searches = [s for s in (search, arrivals) if s is not None]
        devices = () if job.devices is None else (job.devices,)
        self._other_parts: Sequence[LoopPart] = (
            *(*devices, mpirun, clients, *self._searches),
        )
        self._streams = Streams(router, clients.tap)
        self._members = MemberChanges(self._hosts, self._streams, self._emit, environs)
        self._router = router
        self._listen = listen
        self._events: list[Event] = []
        self._started_ns: dict[int, int] = {}
        self._mpirun_status: int | None = None
        self._stdin_feeder = StdinFeeder(job.stdin)
        self._stacks = Stacks(self._ask_for_stacks, router.tail, self._say)
        self._signals = Signals()
        # Signals to end the job that came when it was over.
        self._is_over = False
        self._late_signals: list[int] = []
        # When to look at what the instances do, for the status.
        self._measures_at = inf
        # The same for process groups of torch, and when the answers have come.
        self._looks_at_groups_at = self._all_measured_at = inf

    def start(self) -> None:
        """Begin to supervise a job while mpirun starts; `run` must be called next.

        Raises:
            LaunchError: A host cannot run instances.
        """
        job, now = self._job, time.monotonic()
        self._measures_at = now + FIRST_MEASURE_S
        self._state = JobState(
            num_instances=len(job.specs),
            grace=job.grace,
            keep_going=job.keep_going,
            ends_by=now + job.timeout - job.timeout_used,
            starts_by=now + job.start_timeout,
            timeout=job.timeout,
            start_timeout=job.start_timeout,
            is_in_slurm=job.is_in_slurm,
            debugged=job.stdin.debugged,
            membership=membership.first_members(
                job.host_names,
                refusal=job.reform_refusal,
                least=job.least_instances,
                most=job.most_instances,
                least_hosts=job.least_hosts,
                restarts_left=job.restarts_left,
            ),
        )
        self._signals.start()
        for host in self._hosts:
            host.start(self._emit, self._streams, self._stdin_feeder)
        self._clients.begin(
            Controls(
                emit=self._emit,
                phase=lambda: self._state.phase,
                measure=self._measure,
                ask_for_stacks=self._ask_for_stacks,
                tail=self._router.tail,
                say=self._say,
                error_stream="stdout" if job.routes.merged else "stderr",
            )
        )
        self._mpirun.report_to(self._emit)

    def run(
        self,
        before_end: Callable[[AttemptEnd, Collection[HostLink]], None] = (
            lambda end, hosts: None
        ),
    ) -> AttemptEnd:
        """Supervise the job until nothing of it is left; return how it went.

        Args:
            before_end: Is called with all hosts of the attempt once all instances and
                mpirun have ended, and before the job's resources are undone.
        """
        while self._state.phase is not Phase.OVER:
            self._turn(self._state.deadline)
        for search in self._searches:
            search.end()
        for host in self._hosts:
            host.finish()
        # The guard ends the connections to other hosts, too.
        while not all(host.finished for host in self._hosts):
            self._turn(inf)
        for search in self._searches:
            search.finish()
        before_end(self._end(self._mpirun.output), list(self._hosts))
        self._mpirun.finish(is_clean=all(host.is_clean for host in self._hosts))
        while not self._mpirun.finished:
            self._turn(inf)
        self.write_out()
        self._stdin_feeder.close()
        self._streams.close()
        for host in self._hosts:
            host.close()
        return self._end(self._mpirun.close())

    def _end(self, mpirun_output: bytes) -> AttemptEnd:
        return AttemptEnd(
            state=self._state,
            events=self._events,
            started_ns=self._started_ns,
            mpirun_status=self._mpirun_status,
            mpirun_output=mpirun_output,
        )

    def write_out(self) -> None:
        """Write the rest of the output after the job, as long as it is read."""
        self._is_over = True
        self._router.hide_status(forever=True)
        drain(self._router, self._streams, self._serve_output, self._reader_timeout)

    def close(self) -> None:
        """Release what `write_out` needs: the last thing to call."""
        self._signals.close()
        for sink in self._router.sinks:
            sink.close()

    @property
    def num_signals(self) -> int:
        """How many signals to end the job have come, even when it was over."""
        interrupts = sum(isinstance(event, Interrupted) for event in self._events)
        return interrupts + len(self._late_signals)

    @property
    def late_signal(self) -> int:
        """The first signal to end the job that came when it was over, 0 for none."""
        return next(iter(self._late_signals), 0)

    @property
    def _parts(self) -> Sequence[LoopPart]:
        # mpirun after the hosts: see its `interests`.
        return (*self._hosts, *self._other_parts)

    def _reader_timeout(self) -> float:
        events = self._end(b"").unsurvived_events
        return reader_timeout(
            self._state.cause,
            failed=any(isinstance(e, Exited) and e.status for e in events),
            signals=self.num_signals,
        )

    def _turn(self, deadline: float) -> None:
        """Wait for something to happen, and deal with all that has."""
        now = time.monotonic()
        due = min(
            *(deadline, self._looks_at_groups_at, self._all_measured_at),
            self._members.deadline,
            *(self._router.deadline(), self._streams.deadline()),
            *(self._stacks.deadline(), *(p.deadline(now) for p in self._parts)),
        )
        waiter.serve(self._interests(now), due)
        if self._router.shows_status and now >= self._measures_at:
            self._measures_at = now + MEASURE_INTERVAL_S
            self._measure()
        self._look_at_groups(now)
        self._look_for_growth()
        self._let_hosts_join()
        # What came before has been read: no time limit is over before that counts.
        for part in self._parts:
            part.tick(now)
        loss = "" if self._job.devices is None else self._job.devices.loss
        if loss and not any(isinstance(event, DevicesLost) for event in self._events):
            self._emit(DevicesLost(sentence=loss))
        self._streams.tick()
        self._stdin_feeder.tick()
        self._router.tick(time.monotonic())
        if self._router.closed:
            self._emit(OutputClosed())
        self._show_stacks()
        self._emit(Tick(), now)
        self._members.start_again(self._state)
        self._members.end_hosts(self._state, now)
        self._streams.pause_if_little_came()

    def _interests(self, now: float) -> Iterator[Interest]:
        yield Interest(self._signals.fileno(), READ, self._on_signals)
        for part in self._parts:
            yield from part.interests(now)
        yield from self._streams.interests()
        yield from self._router.interests()
        yield from self._stdin_feeder.interests(self._read_stdin)

    def _serve_output(self, due: float) -> None:
        now = time.monotonic()
        # The connection to a host may bring what its instances wrote last.
        parts: Sequence[LoopPart] = (*self._hosts, self._clients)
        interests = [Interest(self._signals.fileno(), READ, self._on_signals)]
        for part in parts if self._streams else parts[-1:]:
            interests += part.interests(now)
        interests += (*self._streams.interests(), *self._router.interests())
        waiter.serve(interests, min(due, self._clients.deadline(now)))
        self._clients.tick(time.monotonic())

    def _emit(self, event: Event, now: float | None = None) -> None:
        now = time.monotonic() if now is None else now
        if isinstance(event, StacksAvailable):
            self._stacks.answer(event.rank, list(event.pids), now)
        if isinstance(event, UsageMeasured):
            event = self._members.with_instances(event, self._state.membership)
        self._clients.listen(event)
        if isinstance(event, UsageMeasured):
            self._listen(event)
        if isinstance(event, StacksAvailable | UsageMeasured):
            return
        if isinstance(event, MpirunExited):
            # Its processes were lost with hosts, which the job has survived.
            outlives = self._state.outlives_mpirun
            self._mpirun_status = 0 if outlives else event.status
            for host in self._hosts:
                host.take_in_losses()
        self._state, actions = stopping.decide(self._state, event, now)
        if not isinstance(event, Tick | OutputClosed):
            if not isinstance(event, UNCOUNTED):
                self._events.append(event)
            if isinstance(event, TorchGroupsMade) and self._looks_at_groups_at == inf:
                self._looks_at_groups_at = now + FIRST_MEASURE_S
            if isinstance(event, Started):
                self._started_ns[event.rank] = time.monotonic_ns()
            self._listen(event)
        self._note_ends(event)
        if isinstance(event, Connected | HostLost | MpirunStarted):
            self._take_over_failures()
        if isinstance(event, PromptShown | PromptOver | Exited):
            has_prompt = self._state.prompt_since < inf
            self._router.show_prompt_of(self._job.stdin.rank if has_prompt else None)
        if self._state.phase is not Phase.RUNNING:
            self._mpirun.stop_starting()
            self._hosts.tell(protocol.STOP_STARTING)
        for action in actions:
            if isinstance(action, job_state.Action):
                self._act(action)
            else:
                self._members.act(action)

    def _note_ends(self, event: Event) -> None:
        """Tell the members and arrivals which instances or hosts are lost."""
        if isinstance(event, Exited | Refused | ShimLost):
            self._members.note_end(event.rank, self._state.membership)
        elif isinstance(event, HostLost) and not self._job.reform_refusal:
            if self._arrivals is not None:
                self._arrivals.note_loss(event.host)
            for rank in event.ranks:
                self._members.note_end(rank, self._state.membership)

    def _take_over_failures(self) -> None:
        """Let the launcher of an elastic job go on after failures of shims.

        poprun detects the end of a shim only after it has connected. It waits for no
        shims of lost hosts.
        """
        state = self._state
        are_known = len(state.connected | state.gone) == state.num_instances
        is_running = state.phase is Phase.RUNNING
        if are_known and is_running and not self._job.reform_refusal:
            self._mpirun.send_signal(signal.SIGUSR1)

    def _act(self, action: job_state.Action) -> None:
        match action:
            case job_state.TellHosts(kind=kind, values=values):
                self._hosts.tell(kind, *values)
            case job_state.SignalMpirun(signal=number):
                self._mpirun.send_signal(number)
            case job_state.ShowStacks():
                # The report says which instances wait for which.
                self._measure()
                lost = {e.rank for e in self._events if isinstance(e, ShimLost)}
                ranks = sorted(self._state.connected - lost)
                self._stacks.start(ranks, time.monotonic())

    def _ask_for_stacks(self, rank: int, pid: int) -> None:
        self._hosts.of(rank).tell(protocol.SHOW_STACKS_OF, rank, pid)

    def _look_at_groups(self, now: float) -> None:
        """Measure now and then who waits in process groups of torch."""
        if self._state.phase is not Phase.RUNNING:
            self._looks_at_groups_at = self._all_measured_at = inf
        if now >= self._looks_at_groups_at:
            self._looks_at_groups_at = now + GROUPS_INTERVAL_S
            self._all_measured_at = now + ANSWERS_S
            self._measure()
        elif now >= self._all_measured_at:
            self._all_measured_at = inf
            self._listen(AllMeasured())

    def _look_for_growth(self) -> None:
        """Stop a job for which more hosts were found, once all of it runs."""
        if self._search is None:
            return
        if self._state.membership.may_have_state or self._state.has_ended_program:
            # It cannot grow any more: the process must not look at hosts in vain.
            self._search.end()
        if not self._state.may_grow:
            return
        self._search.begin()
        if (growth := self._search.take()) is not None:
            self._emit(growth)
            # A later look would find that the new hosts are not to be looked at yet.
            self._search.end()

    def _let_hosts_join(self) -> None:
        """Start instances on the hosts that have come, and let others leave."""
        if self._arrivals is None:
            return
        state = self._state
        is_running = state.phase is Phase.RUNNING and state.debugged is None
        if not (is_running and state.membership.takes_hosts):
            self._arrivals.end()
            return
        for link in self._arrivals.look():
            self._mpirun.add_connection(link.connection.pid, link.connection.start)
            self._hosts.put(link)
            link.start(self._emit, self._streams, self._stdin_feeder)
            self._emit(HostJoins(host=link.name, ranks=tuple(link.ranks)))
        for leaves in self._arrivals.leaves(self._hosts, self._state.membership):
            self._emit(leaves)

    def _measure(self) -> None:
        self._hosts.tell(protocol.MEASURE)

    def _say(self, sentence: str) -> None:
        self._router.say(f"poprun: {sentence}\n")

    def _show_stacks(self) -> None:
        if self._state.phase is Phase.TRACING:
            self._stacks.tick(time.monotonic())
            if self._stacks.over:
                self._emit(StacksShown())
        elif not self._stacks.over:
            self._stacks.stop()

    # --- Signals to poprun.

    def _on_signals(self) -> None:
        for number in self._signals.read():
            if number in ENDING_SIGNALS and self._is_over:
                self._late_signals.append(number)
            elif number in ENDING_SIGNALS:
                self._emit(self._interruption(number))
            elif number in PASSED_ON:
                self._hosts.tell(protocol.SIGNAL, number)
            elif number == signal.SIGTSTP:
                self._pause()
            elif number == signal.SIGWINCH:
                self._resize()
        ended = self._mpirun.reap()
        if self._arrivals is not None:
            self._arrivals.note_exits(dict(ended))

    def _interruption(self, number: int) -> Event:
        """Return the event for a signal that ends a job, or is for a debugger."""
        state, rank = self._state, self._state.debugged
        is_ctrl_c = number == signal.SIGINT and state.debugger_takes_interrupt
        if rank is None or not is_ctrl_c:
            return Interrupted(signal=number)
        return DebuggerInterrupted(rank=rank, at_prompt=state.prompt_since < inf)

    def _pause(self, number: int = signal.SIGSTOP) -> None:
        self._router.hide_status()
        # SIGSTOP, because SIGTSTP does not reach the leader of another session.
        self._hosts.tell(protocol.SIGNAL, signal.SIGSTOP)
        for search in self._searches:
            search.send_signal(signal.SIGSTOP)
        # A shell continues a stopped job that it kills: poprun must not stop again.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
        os.kill(os.getpid(), number)
        if self._job.stdin.is_own:
            # Continued by "bg", it may not let an instance read what the shell reads.
            wait_until_readable(0, ENDING_SIGNALS)
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        self._hosts.tell(protocol.SIGNAL, signal.SIGCONT)
        for search in self._searches:
            search.send_signal(signal.SIGCONT)

    def _resize(self) -> None:
        """Give the instances' terminals the size that poprun's has now."""
        self._router.resize()
        terminals = self._job.terminals
        if terminals.stdout or terminals.stderr:
            self._streams.resize(terminals.size())
            self._hosts.tell(protocol.SIGNAL, signal.SIGWINCH)

    def _read_stdin(self) -> None:
        if os.isatty(0) and not is_foreground(0):
            self._pause(signal.SIGTTIN)
        self._stdin_feeder.read()
