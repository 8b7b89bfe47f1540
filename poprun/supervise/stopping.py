"""When and how a job stops: (state, event, now) -> (state, actions). Pure.

A job goes through its phases in one direction only:

    RUNNING -> TRACING -> STOPPING -> KILLING -> LEAVING -> ENDING -> OVER

and may leave some out. The holder of a JobState asks `decide` at each event, does the
actions that come back, and calls again with a Tick when `deadline` has come.
"""

import signal
from dataclasses import replace
from math import inf

from poprun.supervise import generations
from poprun.supervise.job_state import (
    SLURMS_END,
    Action,
    Cause,
    JobState,
    Phase,
    Reason,
    ShowStacks,
    SignalMpirun,
    TellHosts,
)
from poprun.supervise.membership import Answer
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
    Tick,
)

# The longest grace period after the death of mpirun, a shim or a host, and where no
# output is read or not all instances have started.
MACHINERY_GRACE_S = 1.0
SHORT_GRACE = (
    *(Reason.MPIRUN_ENDED, Reason.SHIM_LOST, Reason.HOST_LOST),
    *(Reason.OUTPUT_CLOSED, Reason.START_TIMEOUT),
)
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


Step = tuple[JobState, list[Action | Answer]]


def decide(state: JobState, event: Event, now: float) -> Step:
    """Return how the job goes on after an event, and what to do for it."""
    members, answers = generations.decide(state.membership, event, now)
    state = _note(replace(state, membership=members), event, now)
    if state.have_all_started:
        state = replace(state, starts_by=inf)
    state, actions = _react(state, event, now)
    if state.phase is not Phase.RUNNING and not members.is_over:
        members, more_answers = generations.end(members)
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
            is_survived = _goes_on(state) or state.membership.is_of_left(event)
            has_failed = by_itself and status != 0 and not is_survived
            state = replace(state, failed_at=failed_at, has_ended_program=True)
            return _note_end(state, rank, now, has_failed=has_failed)
        case FailedInFinalize(rank=rank):
            return _note_end(state, rank, now, has_failed=True)
        case HostLost(ranks=ranks):
            return replace(state, gone=state.gone.union(ranks))
        case StartedAgain(rank=rank):
            return replace(state, gone=state.gone - {rank})
        case HostJoins(ranks=ranks):
            return replace(
                state,
                num_instances=max(state.num_instances, *(r + 1 for r in ranks)),
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
    if state.membership.is_of_left(event):
        return state, []
    running = state.phase is Phase.RUNNING
    if running and (cause := _cause_while_running(state, event)):
        return _stop(state, cause, now)
    match event:
        case DebuggerInterrupted(rank=rank) if running:
            return state, [TellHosts(kind=protocol.INTERRUPT_INSTANCE, values=(rank,))]
        case MpirunExited() if state.outlives_mpirun:
            return state, []
        case MpirunExited() if state.phase < Phase.LEAVING and not _all_gone(state):
            return _stop(state, Cause(reason=Reason.MPIRUN_ENDED), now)
        case HostsAvailable() if state.may_grow:
            return _stop(state, Cause(reason=Reason.GROWTH), now)
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
        case Tick() if now >= state.deadline:
            return _tick(state, now)
    return state, []


def _cause_while_running(state: JobState, event: Event) -> Cause | None:
    """Return why a running job stops because of an event; None if it goes on."""
    match event:
        case Exited() | FailedInFinalize() if state.failed is not None:
            if not (state.keep_going or state.debugged is not None):
                return Cause(reason=Reason.FAILED, rank=state.failed)
        case Refused() | ShimLost() | HostLost() if _goes_on(state):
            return None
        case Refused(rank=rank):
            return Cause(reason=Reason.REFUSED, rank=rank)
        case ShimLost(rank=rank):
            return Cause(reason=Reason.SHIM_LOST, rank=rank)
        case HostLost(ranks=ranks) if ranks:
            return Cause(reason=Reason.HOST_LOST)
        case DevicesLost():
            # Others may have them: it must not compute on.
            return Cause(reason=Reason.DEVICES_LOST)
        case OutputClosed():
            return Cause(reason=Reason.OUTPUT_CLOSED)
    return None


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


def _stop(state: JobState, cause: Cause, now: float) -> Step:
    grace = state.grace
    if cause.reason in SHORT_GRACE:
        grace = min(grace, MACHINERY_GRACE_S)
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
        return _stop(state, cause, now)
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
            return _stop(state, Cause(reason=Reason.START_TIMEOUT), now)
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
