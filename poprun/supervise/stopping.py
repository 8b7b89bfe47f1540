"""When and how a job stops: (state, event, now) -> (state, actions). Pure.

A job goes through its phases in one direction only:

    RUNNING -> TRACING -> STOPPING -> KILLING -> LEAVING -> ENDING -> OVER

and may leave some out. The holder of a JobState asks `decide` at each event, does the
actions that come back, and calls again with a Tick when `deadline` has come.
"""

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from math import inf

from poprun.supervise import membership
from poprun.supervise.membership import Answer, Membership
from poprun.wire import protocol
from poprun.wire.events import (
    Clean,
    Connected,
    DebuggerInterrupted,
    DebuggerReady,
    DevicesLost,
    Event,
    Exited,
    FailedInFinalize,
    HostJoins,
    HostLost,
    HostsAvailable,
    Interrupted,
    MpirunExited,
    OutputClosed,
    PromptOver,
    PromptShown,
    Refused,
    ShimLeft,
    ShimLost,
    SlurmEndsJob,
    StacksShown,
    Started,
    StartedAgain,
)

# The longest grace period when mpirun, the guard or a shim has died.
MACHINERY_GRACE_S = 1.0
# How long Slurm may take to send SIGTERM to all processes of a job.
SLURM_SIGNALS_S = 0.2
# How long instances may take to show their Python stacks, all together.
STACKS_S = 10.0
# From "kill everything" to "then without the shims".
KILL_TIMEOUT_S = 1.0
# How long mpirun may take to leave after its last child: at least, and per instance.
MPIRUN_TIMEOUT_S = 2.0
MPIRUN_TIMEOUT_PER_INSTANCE_S = 0.05
# The least when it gets SIGTERM: Open MPI 4.1 then sleeps twice for a second before it
# ends its children, unless it has seen them end.
MPIRUN_TERM_TIMEOUT_S = 5.0


class Phase(IntEnum):
    """The phases of a job, in their order."""

    RUNNING = 0
    TRACING = 1  # the instances show their Python stacks before they are stopped
    STOPPING = 2  # a signal has been sent, and may be obeyed
    KILLING = 3
    LEAVING = 4  # all instances have ended; shims and mpirun may go
    ENDING = 5  # mpirun did not go by itself
    OVER = 6


class Reason(IntEnum):
    """Why a job stops before all its instances have ended by themselves."""

    FAILED = 0
    REFUSED = 1
    INTERRUPTED = 2
    TIMEOUT = 3
    START_TIMEOUT = 4
    OUTPUT_CLOSED = 5
    MPIRUN_ENDED = 6
    SHIM_LOST = 7
    DEVICES_LOST = 8
    HOST_LOST = 9
    GROWTH = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    reason: Reason
    rank: int | None = None
    signal: int | None = None
    # The client of popctl that has asked for it, "" if none has.
    client: str = ""


SLURMS_END = Cause(reason=Reason.INTERRUPTED, signal=signal.SIGTERM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something to do for the end of a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TellHosts(Action):
    """Send a decision to all hosts: see HostLink.tell."""

    kind: int
    values: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalMpirun(Action):
    signal: int


class ShowStacks(Action):
    """Show the Python stacks of all instances; StacksShown is the end of it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """How far a job has come."""

    num_instances: int
    grace: float = 5.0
    keep_going: bool = False
    # Absolute times, on the clock that `now` is read from.
    ends_by: float = inf
    starts_by: float = inf
    # The seconds that the user allowed for each.
    timeout: float = inf
    start_timeout: float = inf
    # Whether Slurm may send SIGTERM to all processes, to poprun too.
    is_in_slurm: bool = False
    # The instance of --pdb, until it ends: no failure of another one stops it.
    debugged: int | None = None
    # Whether a Python of it has its debugger, since when that shows a prompt, and
    # whether it has been interrupted since the last one.
    has_debugger: bool = False
    prompt_since: float = inf
    was_interrupted: bool = False
    # The first instance that has failed by itself, and without which the job does not
    # go on; and whether any program has ended.
    failed: int | None = None
    has_ended_program: bool = False
    membership: Membership = field(default_factory=Membership)

    phase: Phase = Phase.RUNNING
    phase_ends: float = inf
    stopping_since: float = inf
    # When the instances get SIGTERM that Slurm may have signalled.
    signals_at: float = inf
    cause: Cause | None = None
    connected: frozenset[int] = frozenset()
    started: frozenset[int] = frozenset()
    gone: frozenset[int] = frozenset()
    # The instances whose shims mpirun does not wait for: they were lost, or are on a
    # host that has come.
    beside_mpirun: frozenset[int] = frozenset()
    # When an instance last failed, or something other than poprun stopped it.
    failed_at: float = -inf
    mpirun_ended: bool = False
    mpirun_hung: bool = False
    mpirun_killed: bool = False  # by poprun
    got_sigterm: bool = False

    @property
    def deadline(self) -> float:
        """When something is to be done even if nothing happens."""
        if self.phase is Phase.RUNNING:
            # The time in which a user types at a prompt does not count.
            due = min(self.ends_by, self.starts_by)
            due = inf if self.prompt_since < inf else due
            return min(due, self.membership.deadline)
        if self.phase is Phase.STOPPING:
            return min(self.phase_ends, self.signals_at)
        return self.phase_ends

    @property
    def have_all_started(self) -> bool:
        """Whether each instance has started, or was lost before and is not needed."""
        survived = self.gone if self.cause is None else frozenset[int]()
        return len(self.started | survived) == self.num_instances

    @property
    def may_grow(self) -> bool:
        """Whether it may be stopped to start again with more instances.

        A job in which a program has ended is about to end. Where instances can re-form,
        they may keep their state in memory alone.
        """
        all_run = len(self.started) == self.num_instances and not self.gone
        is_running = self.phase is Phase.RUNNING and self.debugged is None
        may_stop = not self.has_ended_program and not self.membership.may_have_state
        return is_running and all_run and may_stop

    @property
    def outlives_mpirun(self) -> bool:
        """Whether an instance is left, but none that mpirun has started."""
        left = set(range(self.num_instances)) - self.gone
        is_running = self.phase is Phase.RUNNING
        return is_running and bool(left) and left <= self.beside_mpirun

    @property
    def debugger_takes_interrupt(self) -> bool:
        """Whether Ctrl-C is for the debugger: twice without a prompt is for the job."""
        is_running = self.phase is Phase.RUNNING and self.debugged is not None
        is_answered = self.prompt_since < inf or not self.was_interrupted
        return is_running and self.has_debugger and is_answered


Step = tuple[JobState, list[Action | Answer]]


def decide(state: JobState, event: Event, now: float) -> Step:
    """Return how the job goes on after an event, and what to do for it."""
    members, answers = membership.decide(state.membership, event, now)
    state = _note(replace(state, membership=members), event, now)
    if state.have_all_started:
        state = replace(state, starts_by=inf)
    state, actions = _react(state, event, now)
    if state.phase is not Phase.RUNNING and not members.is_over:
        members, more_answers = membership.end(members)
        state = replace(state, membership=members)
        answers += more_answers
    actions += answers
    if state.phase < Phase.LEAVING and _all_gone(state):
        state, more = _leave(state, now)
        actions += more
    if state.phase >= Phase.LEAVING and state.mpirun_ended:
        state = replace(state, phase=Phase.OVER, phase_ends=inf)
    return state, actions


def _note(state: JobState, event: Event, now: float) -> JobState:
    """Record an event, whatever follows from it."""
    match event:
        case Connected(rank=rank):
            return replace(state, connected=state.connected | {rank})
        case Started(rank=rank):
            return replace(state, started=state.started | {rank})
        case Clean(rank=rank) | Refused(rank=rank):
            return replace(state, gone=state.gone | {rank})
        case ShimLost(rank=rank):
            return replace(
                state,
                gone=state.gone | {rank},
                beside_mpirun=state.beside_mpirun | {rank},
                failed_at=now,
            )
        case Exited(rank=rank, status=status, by_itself=by_itself):
            failed_at = now if status or not by_itself else state.failed_at
            has_failed = by_itself and status != 0 and not _goes_on(state)
            state = replace(state, failed_at=failed_at, has_ended_program=True)
            return _note_end(state, rank, now, has_failed=has_failed)
        case FailedInFinalize(rank=rank):
            return _note_end(state, rank, now, has_failed=True)
        case HostLost(ranks=ranks):
            return replace(state, gone=state.gone.union(ranks))
        case StartedAgain(rank=rank):
            return replace(state, gone=state.gone - {rank})
        case HostJoins(ranks=ranks, host_names=names):
            return replace(
                state,
                num_instances=len(names),
                connected=state.connected.union(ranks),
                started=state.started.difference(ranks),
                gone=state.gone.difference(ranks),
                beside_mpirun=state.beside_mpirun.union(ranks),
            )
        case MpirunExited():
            return replace(state, mpirun_ended=True)
        case DebuggerReady() | PromptShown() | PromptOver() | DebuggerInterrupted():
            return _note_debugger(state, event, now)
    return state


def _goes_on(state: JobState) -> bool:
    """Return whether the job goes on without the instances that are lost by now."""
    return state.phase is Phase.RUNNING and state.membership.goes_on


def _note_end(state: JobState, rank: int, now: float, *, has_failed: bool) -> JobState:
    failed = rank if has_failed and state.failed is None else state.failed
    state = replace(state, failed=failed)
    if rank != state.debugged:
        return state
    # It may have been killed at its prompt.
    return replace(_end_prompt(state, now), debugged=None)


def _end_prompt(state: JobState, now: float) -> JobState:
    """Return the state after a prompt, if one was shown: its time does not count."""
    if state.prompt_since == inf:
        return state
    shown = now - state.prompt_since
    return replace(
        state,
        prompt_since=inf,
        ends_by=state.ends_by + shown,
        starts_by=state.starts_by + shown,
    )


def _note_debugger(state: JobState, event: Event, now: float) -> JobState:
    match event:
        case DebuggerReady(rank=rank) if rank == state.debugged:
            return replace(state, has_debugger=True)
        case PromptShown(rank=rank) if rank == state.debugged:
            since = min(state.prompt_since, now)
            return replace(state, prompt_since=since, was_interrupted=False)
        case PromptOver(rank=rank) if rank == state.debugged:
            return _end_prompt(state, now)
        case DebuggerInterrupted(at_prompt=False):
            return replace(state, was_interrupted=True)
    return state


def _react(state: JobState, event: Event, now: float) -> Step:
    if cause := _cause_in_place_of_growth(state, event):
        # The instances have got SIGTERM already.
        return replace(state, cause=cause), []
    running = state.phase is Phase.RUNNING
    machinery = min(state.grace, MACHINERY_GRACE_S)
    match event:
        case Exited() | FailedInFinalize() if running and state.failed is not None:
            if state.keep_going or state.debugged is not None:
                return state, []
            cause = Cause(reason=Reason.FAILED, rank=state.failed)
            return _stop(state, cause, now, state.grace)
        case DebuggerInterrupted(rank=rank) if running:
            return state, [TellHosts(kind=protocol.INTERRUPT_INSTANCE, values=(rank,))]
        case Refused() | ShimLost() | HostLost() if _goes_on(state):
            return state, []
        case Refused(rank=rank) if running:
            return _stop(
                state, Cause(reason=Reason.REFUSED, rank=rank), now, state.grace
            )
        case ShimLost(rank=rank) if running:
            return _stop(
                state, Cause(reason=Reason.SHIM_LOST, rank=rank), now, machinery
            )
        case HostLost(ranks=ranks) if running and ranks:
            return _stop(state, Cause(reason=Reason.HOST_LOST), now, machinery)
        case MpirunExited() if state.outlives_mpirun:
            return state, []
        case MpirunExited() if state.phase < Phase.LEAVING and not _all_gone(state):
            return _stop(state, Cause(reason=Reason.MPIRUN_ENDED), now, machinery)
        case HostsAvailable() if state.may_grow:
            return _stop(state, Cause(reason=Reason.GROWTH), now, state.grace)
        case DevicesLost() if running:
            # Others may have them: it must not compute on.
            return _stop(state, Cause(reason=Reason.DEVICES_LOST), now, state.grace)
        case OutputClosed() if running:
            return _stop(state, Cause(reason=Reason.OUTPUT_CLOSED), now, machinery)
        case ShimLeft() if state.phase is Phase.LEAVING:
            ends = max(state.phase_ends, _leaves_by(state, now))
            return replace(state, phase_ends=ends), []
        case StacksShown() if state.phase is Phase.TRACING:
            return _signal(state, now, state.grace)
        case SlurmEndsJob():
            return _stop_because_of_slurm(state, now), []
        case Interrupted(signal=signal.SIGTERM) if state.is_in_slurm:
            return _interrupt_in_slurm(state, now)
        case Interrupted(signal=number, client=client):
            return _interrupt(state, number, now, client)
    return _tick(state, now) if now >= state.deadline else (state, [])


def _cause_in_place_of_growth(state: JobState, event: Event) -> Cause | None:
    """Return why a job that stops in order to grow ends instead; None if it goes on."""
    if state.cause is None or state.cause.reason is not Reason.GROWTH:
        return None
    match event:
        case Interrupted(signal=number, client=client):
            return Cause(reason=Reason.INTERRUPTED, signal=number, client=client)
        case SlurmEndsJob():
            return SLURMS_END
        case DevicesLost():
            return Cause(reason=Reason.DEVICES_LOST)
        case OutputClosed():
            return Cause(reason=Reason.OUTPUT_CLOSED)
    return None


def _stop(state: JobState, cause: Cause, now: float, grace: float) -> Step:
    if state.phase is Phase.STOPPING:
        ends = min(state.phase_ends, now + grace)
        return replace(state, phase_ends=ends), []
    if state.phase is Phase.TRACING:
        return _signal(state, now, grace)
    if state.phase is not Phase.RUNNING:
        return state, []
    return _signal(replace(state, cause=cause), now, grace)


def _signal(state: JobState, now: float, grace: float) -> Step:
    number = signal.SIGTERM
    is_interrupted = state.cause and state.cause.signal == signal.SIGINT
    # A debugger would take it for its own.
    if is_interrupted and state.debugged is None:
        number = signal.SIGINT  # as a terminal would: it is what programs expect
    state = replace(
        state, phase=Phase.STOPPING, phase_ends=now + grace, stopping_since=now
    )
    return state, [TellHosts(kind=protocol.SIGNAL, values=(number,))]


def _trace(state: JobState, cause: Cause, now: float) -> Step:
    """Let the instances show their Python stacks, and stop the job after that."""
    ends = now + STACKS_S
    state = replace(state, phase=Phase.TRACING, cause=cause, phase_ends=ends)
    return state, [ShowStacks()]


def _interrupt(state: JobState, number: int, now: float, client: str = "") -> Step:
    if state.phase is Phase.RUNNING:
        cause = Cause(reason=Reason.INTERRUPTED, signal=number, client=client)
        if number == signal.SIGQUIT:
            return _trace(state, cause, now)
        return _stop(state, cause, now, state.grace)
    if state.phase in (Phase.TRACING, Phase.STOPPING):
        return _kill(state, now)
    if state.phase is Phase.LEAVING:
        return _end_mpirun(state, now)
    # Everything that still lives has been killed already.
    return state, []


def _interrupt_in_slurm(state: JobState, now: float) -> Step:
    """Stop a job because of a SIGTERM that Slurm may have sent to all processes.

    Instances and other hosts may have got it before poprun: then it is no second one.
    """
    if not state.got_sigterm:
        state = replace(_stop_because_of_slurm(state, now), got_sigterm=True)
        signal_before = state.cause and state.cause.signal
        is_stopping = state.phase is Phase.STOPPING and signal_before is None
        if is_stopping or state.cause == SLURMS_END:
            return state, []
    return _interrupt(state, signal.SIGTERM, now)


def _stop_because_of_slurm(state: JobState, now: float) -> JobState:
    """Return a job that stops because one of its hosts has got SIGTERM from Slurm.

    An instance that failed or was lost an instant ago has ended by the same signal.
    """
    if state.phase is Phase.RUNNING:
        return _wait_for_slurm_to_signal(state, now)
    since = state.stopping_since if state.cause else state.failed_at
    has_signal = state.cause is not None and state.cause.signal is not None
    if has_signal or now >= since + SLURM_SIGNALS_S:
        return state
    if state.phase is Phase.STOPPING:
        ends = state.stopping_since + state.grace
        state = replace(state, phase_ends=ends)
    return replace(state, cause=SLURMS_END)


def _wait_for_slurm_to_signal(state: JobState, now: float) -> JobState:
    """Return a job that stops, and signals instances soon if Slurm does not.

    A second signal might interrupt what a program does because of the first.
    """
    return replace(
        state,
        phase=Phase.STOPPING,
        phase_ends=now + state.grace,
        stopping_since=now,
        signals_at=now + SLURM_SIGNALS_S,
        cause=SLURMS_END,
    )


def _tick(state: JobState, now: float) -> Step:
    match state.phase:
        case Phase.RUNNING if state.prompt_since < inf:
            return state, []
        case Phase.RUNNING if now >= state.ends_by:
            return _trace(state, Cause(reason=Reason.TIMEOUT), now)
        case Phase.RUNNING if now < state.starts_by:
            return state, []  # an instance is due to be started again
        case Phase.RUNNING:
            grace = min(state.grace, MACHINERY_GRACE_S)
            return _stop(state, Cause(reason=Reason.START_TIMEOUT), now, grace)
        case Phase.TRACING:
            return _signal(state, now, state.grace)
        case Phase.STOPPING if now < state.phase_ends:
            state = replace(state, signals_at=inf)
            return state, [TellHosts(kind=protocol.SIGNAL, values=(signal.SIGTERM,))]
        case Phase.STOPPING:
            return _kill(state, now)
        case Phase.KILLING:
            return _end_mpirun(state, now)
        case Phase.LEAVING:
            return _end_mpirun(replace(state, mpirun_hung=True), now)
    return replace(state, phase=Phase.OVER, phase_ends=inf), []


def _kill(state: JobState, now: float) -> Step:
    ends = now + KILL_TIMEOUT_S
    return replace(state, phase=Phase.KILLING, phase_ends=ends), [
        TellHosts(kind=protocol.KILL)
    ]


def _end_mpirun(state: JobState, now: float) -> Step:
    ends = now + KILL_TIMEOUT_S
    state = replace(state, phase=Phase.ENDING, phase_ends=ends, mpirun_killed=True)
    return state, [SignalMpirun(signal=signal.SIGKILL)]


def _all_gone(state: JobState) -> bool:
    """Return whether no instance runs, and none may still connect."""
    if state.phase is Phase.RUNNING and not state.mpirun_ended:
        return len(state.gone) == state.num_instances
    return state.gone >= state.connected


def _leave(state: JobState, now: float) -> Step:
    ends = _leaves_by(state, now)
    actions: list[Action | Answer] = [TellHosts(kind=protocol.RELEASE)]
    have_connected = len(state.connected) == state.num_instances
    if not (have_connected or state.have_all_started or state.mpirun_ended):
        # It has not even started them all, and need not begin now.
        if state.is_in_slurm:
            # Where SIGTERM is blocked.
            actions.append(SignalMpirun(signal=signal.SIGKILL))
            state = replace(state, mpirun_killed=True)
        else:
            actions.append(SignalMpirun(signal=signal.SIGTERM))
            ends = max(ends, now + MPIRUN_TERM_TIMEOUT_S)
    return replace(state, phase=Phase.LEAVING, phase_ends=ends), actions


def _leaves_by(state: JobState, now: float) -> float:
    """Return when mpirun has to be gone if nothing more happens."""
    per_instance = MPIRUN_TIMEOUT_PER_INSTANCE_S * state.num_instances
    return now + max(MPIRUN_TIMEOUT_S, per_instance)
