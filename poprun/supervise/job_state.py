"""How far a job has come, why it stops, and the actions for its end: values."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from math import inf

from poprun.supervise.membership import Membership


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
    # The first instance that has failed by itself, if the job cannot go on without it;
    # and whether any program has ended.
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
