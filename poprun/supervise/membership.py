"""The members of a job that goes on without lost instances. Pure.

    (membership, event, now) -> (membership, answers)

The members form a generation, from 0 on. When instances are lost, the others leave it:
each asks for the next generation, and all get it once no living member is missing. An
instance that is started again, or on a host that has come, has no part in a generation
until it asks for one, and the members are told then.

`rank` in events is the number of an instance in the attempt. Its rank in a generation
is its position among the members.
"""

import os
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import inf
from typing import Any

from poprun.backoff import restart_wait
from poprun.helpers.processes import signal_name
from poprun.plan.values import NOT_ELASTIC
from poprun.wire import protocol
from poprun.wire.events import (
    CanReform,
    Clean,
    Event,
    Exited,
    HostJoins,
    HostLost,
    ReformAsked,
    ReformEnded,
    Refused,
    ShimLost,
)
from poprun.words import counted, describe_instances

ENDING = "The job is ending, so its instances cannot re-form."
LOST, ADDED = "lost", "added"
# The wait before an instance is started again for the first time: the others may be
# lost in the same moment.
FIRST_START_S = 0.25
# How long the others wait for a member whose process that can re-form has ended.
# Usually its instance ends with the process; a wrapper around it may go on.
DEPART_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """An event after which instances are not there any more, in a generation.

    of_members: Whether a member is among them, and not only newcomers.
    """

    event: Event
    generation: int
    at: float
    why: str
    of_members: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TellMember:
    """Send a message to the process of an instance that can re-form."""

    rank: int
    kind: int
    # A sentence, or a value for JSON.
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginGeneration:
    """Send each member its variables in a new generation.

    Attributes:
        ports: The TCP ports that each of them has found.
        lost, added, seconds: See MembersChanged.
    """

    generation: int
    members: tuple[int, ...]
    ports: Mapping[int, tuple[int, int]]
    why: str
    lost: tuple[int, ...]
    added: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAgain:
    """Start the program of an instance that has ended again."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KillInstance:
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectHosts:
    """Find out earlier whether the hosts of instances are lost: others have left them.

    popdist detects that an instance's host does not answer before poprun does.
    """

    ranks: tuple[int, ...]


Answer = TellMember | BeginGeneration | StartAgain | KillInstance | SuspectHosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The members of a job, its living instances, and requests to re-form."""

    # Why the job stops when an instance is lost; "" if it can go on.
    refusal: str = NOT_ELASTIC
    # The smallest number of members, and of their hosts.
    least: int = 1
    least_hosts: int = 1
    # How many more times an instance may be started again, and how many have been.
    restarts_left: int = 0
    num_restarts: int = 0
    # The host of each instance; nothing in a job on one host.
    hosts: Sequence[str] = ()
    generation: int = 0
    members: tuple[int, ...] = ()
    # The instances whose programs may run: members and newcomers.
    living: Set[int] = frozenset()
    # The instances that were started later and belong to no generation yet, and those
    # of them that a host has brought.
    newcomers: Set[int] = frozenset()
    brought: Set[int] = frozenset()
    # The instances with a process that can re-form.
    able: Set[int] = frozenset()
    # The requests for the next generation, and the time of the first of them.
    asked: Mapping[int, ReformAsked] = field(default_factory=dict)
    asked_at: float = inf
    # The members whose process that can re-form has ended, while their instance goes
    # on: when others wait for them no longer; and those for which that time has come.
    departures: Mapping[int, float] = field(default_factory=dict)
    departed: Set[int] = frozenset()
    # Whether a member has ended with exit code 0: the job comes to its end.
    is_finishing: bool = False
    # Whether the last loss was one of newcomers alone, after such an end.
    lost_late_newcomers: bool = False
    # Whether the job stops.
    is_over: bool = False
    losses: Sequence[Loss] = ()
    # When lost instances are started again: inf while processes of them still run.
    starts: Mapping[int, float] = field(default_factory=dict)

    @property
    def living_members(self) -> list[int]:
        present = self.available - self.newcomers
        return [rank for rank in self.members if rank in present]

    @property
    def available(self) -> Set[int]:
        """The living instances, but for those that cannot re-form any more."""
        return self.living - self.departed

    @property
    def goes_on(self) -> bool:
        """Whether the job goes on without the instances that are lost."""
        are_enough = self.lost_late_newcomers or self.are_enough(self.available)
        return self.can_reform and are_enough

    @property
    def can_reform(self) -> bool:
        """Whether all members that live have told poprun that they can."""
        left = self.living_members
        return not self.refusal and bool(left) and self.able >= set(left)

    @property
    def takes_hosts(self) -> bool:
        """Whether instances on more hosts may join the members."""
        return self.can_reform and not self.is_finishing and not self.is_over

    @property
    def may_have_state(self) -> bool:
        """Whether an instance can re-form: it may keep its state in memory alone."""
        return bool(self.able) and not self.refusal

    def are_enough(self, ranks: Collection[int]) -> bool:
        """Return whether the job may go on with these instances."""
        hosts = {self.hosts[rank] for rank in ranks} if self.hosts else {""}
        return len(ranks) >= self.least and len(hosts) >= self.least_hosts

    @property
    def deadline(self) -> float:
        """When an instance is to be started again, or waited for no longer."""
        return min([*self.starts.values(), *self.departures.values()], default=inf)

    @property
    def present_losses(self) -> list[Loss]:
        """The losses since the present generation began."""
        return [loss for loss in self.losses if loss.generation == self.generation]

    def survived(self, *, was_stopped: bool) -> list[Event]:
        """Return the events that count as no failure of the job.

        Args:
            was_stopped: Whether the job was stopped: by the present losses, perhaps.
        """
        present = self.present_losses if was_stopped else []
        return [loss.event for loss in self.losses if loss not in present]


Step = tuple[Membership, list[Answer]]


def first_members(num_instances: int, **settings: Any) -> Membership:
    """Return the membership of an attempt that is about to start."""
    ranks = tuple(range(num_instances))
    return Membership(members=ranks, living=frozenset(ranks), **settings)


def decide(state: Membership, event: Event, now: float) -> Step:
    """Return the membership after an event, and what to do for it."""
    match event:
        case CanReform(rank=rank):
            value = {"generation": state.generation, "refusal": _refuse(state, rank)}
            answer = TellMember(rank=rank, kind=protocol.ELASTIC_KNOWN, value=value)
            state = _with_process(state, rank)
            return replace(state, able=state.able | ({rank} & state.living)), [answer]
        case ReformAsked():
            return _ask(state, event, now)
        case ReformEnded(rank=rank):
            # Usually its instance ends at the same time.
            is_awaited = rank in state.living_members and not state.is_over
            at = {rank: now + DEPART_S} if is_awaited and not state.refusal else {}
            state = replace(state, departures={**state.departures, **at})
            return replace(state, asked=_without(state.asked, {rank})), []
    if state.refusal or state.is_over:
        return state, []
    match event:
        case Exited(rank=rank, status=0) if rank in state.living:
            # It may be one that was started again: the members are asked then.
            if rank not in state.departed:
                state = replace(state, is_finishing=True, starts={})
            return _advance(_without_ranks(state, {rank}), now)
        case Exited(rank=rank, status=status) if status:
            return _lose(state, event, {rank}, now)
        case ShimLost(rank=rank) | Refused(rank=rank):
            return _lose(state, event, {rank}, now)
        case HostLost(ranks=ranks):
            return _lose(state, event, set(ranks), now)
        case HostJoins(ranks=ranks, host_names=hosts):
            return replace(
                state,
                hosts=hosts,
                living=state.living | {*ranks},
                newcomers=state.newcomers | {*ranks},
                brought=state.brought | {*ranks},
            ), []
        case Clean(rank=rank) if rank in state.starts:
            return _schedule(state, rank, now), []
    state, answers = _depart(state, now)
    state, more = _start_due(state, now)
    return state, answers + more


def end(state: Membership) -> Step:
    """Stop re-forming: refuse the requests that wait, and all later ones."""
    state, answers = _refuse_all(state, ENDING)
    return replace(state, is_over=True, starts={}, departures={}), answers


def _refuse(state: Membership, rank: int) -> str:
    """Return why an instance cannot re-form, or ""."""
    is_ending = state.is_over or rank not in state.living
    return state.refusal or (ENDING if is_ending else "")


def _ask(state: Membership, event: ReformAsked, now: float) -> Step:
    rank = event.rank
    refusal = _refuse(state, rank)
    # The generation may have changed since it connected.
    is_late = rank in state.newcomers
    if event.generation != state.generation and not is_late:
        refusal = refusal or (
            f"Instance {rank} leaves generation {event.generation}, but the present "
            f"one is {state.generation}."
        )
    if rank not in state.members and not is_late:
        refusal = refusal or (
            f"The others have left instance {rank} behind, because its process that "
            "used popdist had ended. Use popdist in one process of each instance."
        )
    if refusal:
        return state, [_refusal(rank, refusal)]
    asked_at = min(state.asked_at, now) if state.asked else now
    state = replace(state, asked={**state.asked, rank: event}, asked_at=asked_at)
    answers: list[Answer] = []
    if rank not in state.newcomers:
        missing = [r for r in state.living_members if r not in state.asked]
        answers = [SuspectHosts(ranks=tuple(missing))] if missing else []
    else:
        answers = _tell_of_newcomer(state, rank)
    state, more = _advance(state, now)
    return state, answers + more


def _lose(state: Membership, event: Event, ranks: set[int], now: float) -> Step:
    lost, brought = ranks & state.living, state.brought
    has_lost_members = not lost.isdisjoint({*state.members} - state.newcomers)
    why = _describe(state, event)
    loss = Loss(
        event=event,
        generation=state.generation,
        at=now,
        why=why,
        of_members=has_lost_members,
    )
    starts = dict(state.starts)
    if not isinstance(event, Exited):
        # The supervisor that could start them is lost.
        starts = _without(starts, ranks)
    # The members that still work do not need those: none re-forms any more for them.
    is_late = state.is_finishing and bool(lost) and not has_lost_members
    state = replace(
        _without_ranks(state, ranks), starts=starts, lost_late_newcomers=is_late
    )
    if state.goes_on or not lost:
        state = replace(state, losses=[*state.losses, loss])
    if not lost:
        return state, []
    if not state.goes_on:
        # With --keep-going the others go on, but without those that are lost.
        return _advance(state, now)
    may_start = len(state.starts) < state.restarts_left and not state.is_finishing
    if isinstance(event, Exited) and may_start:
        state = replace(state, starts={**state.starts, event.rank: inf})
    elif isinstance(event, ShimLost) and may_start and not event.is_final:
        # The kernel has killed the program, too.
        state = _schedule(state, event.rank, now)
    answers = _tell_members(state, LOST, why) if has_lost_members else []
    # Others of a host that has come may have waited for a newcomer on it.
    waiting = {state.hosts[r]: r for r in state.brought & state.asked.keys()}
    for host in dict.fromkeys(state.hosts[rank] for rank in lost & brought):
        if host in waiting:
            answers += _tell_of_newcomer(state, waiting[host])
    state, more = _advance(state, now)
    return state, answers + more


def _with_process(state: Membership, rank: int) -> Membership:
    """Forget that the process of an instance has ended: it has another one, or none."""
    departures = _without(state.departures, {rank})
    return replace(state, departures=departures, departed=state.departed - {rank})


def _depart(state: Membership, now: float) -> Step:
    """Let the others wait no longer for members whose processes have ended."""
    due = {rank for rank, at in state.departures.items() if at <= now}
    if not due:
        return state, []
    departures = _without(state.departures, due)
    state = replace(state, departures=departures, departed=state.departed | due)
    return _advance(state, now) if state.asked else (state, [])


def _without_ranks(state: Membership, ranks: set[int]) -> Membership:
    for rank in ranks:
        state = _with_process(state, rank)
    return replace(
        state,
        living=state.living - ranks,
        newcomers=state.newcomers - ranks,
        brought=state.brought - ranks,
        able=state.able - ranks,
        asked=_without(state.asked, ranks),
    )


def _tell_of_newcomer(state: Membership, rank: int) -> list[Answer]:
    """Return the messages about an instance that has asked to join the members.

    They hear of a host that has come once all its instances have asked, so that they
    re-form once for it.
    """
    why = f"instance {rank}{_on(state, rank)} was started again"
    if rank in state.brought:
        host = state.hosts[rank]
        ranks = [r for r in sorted(state.brought) if state.hosts[r] == host]
        if not state.asked.keys() >= set(ranks):
            return []
        why = _describe_arrival(host, ranks)
    return _tell_members(state, ADDED, why)


def _describe_arrival(host: str, ranks: Sequence[int]) -> str:
    return f"the host {host} has joined with {describe_instances(ranks)}"


def _tell_members(state: Membership, kind: str, why: str) -> list[Answer]:
    """Return the message about a change for each member that does not know of it."""
    value = {"kind": kind, "why": why}
    ranks = [
        r for r in state.living_members if r in state.able and r not in state.asked
    ]
    change = protocol.MEMBERS_CHANGE
    return [TellMember(rank=rank, kind=change, value=value) for rank in ranks]


def _advance(state: Membership, now: float) -> Step:
    """Begin the next generation if no living member is missing."""
    left = state.living_members
    if not left and state.departed:
        return state, []  # their instances have not ended
    if not left:
        # No member is left that could pass on the state of the job.
        state, answers = _refuse_all(state, ENDING)
        if state.is_finishing:
            # Programs that wait would report the refusal, which is no error then.
            answers = []
        kills = [KillInstance(rank=rank) for rank in sorted(state.living)]
        none: Set[int] = frozenset()
        return replace(state, living=none, newcomers=none), [*answers, *kills]
    if not state.asked or not state.asked.keys() >= set(left):
        return state, []
    if not state.are_enough(state.asked):
        if state.are_enough(state.available):
            return state, []  # others have been started again
        return _refuse_all(state, _too_few(state))
    return _begin(state, tuple(sorted(state.asked)), now)


def _begin(state: Membership, members: tuple[int, ...], now: float) -> Step:
    losses = [loss for loss in state.present_losses if loss.of_members]
    added = tuple(rank for rank in members if rank in state.newcomers)
    stayed = {*members} - {*added}
    reasons = [loss.why for loss in losses]
    for rank in state.departed & {*state.members}:
        reasons.append(
            f"the process of instance {rank}{_on(state, rank)} that used popdist has "
            "ended"
        )
    if again := [rank for rank in added if rank not in state.brought]:
        verb = "was" if len(again) == 1 else "were"
        reasons.append(f"{describe_instances(again)} {verb} started again")
    brought = [rank for rank in added if rank in state.brought]
    for host, ranks in groupby(brought, lambda rank: state.hosts[rank]):
        reasons.append(_describe_arrival(host, list(ranks)))
    began = min([loss.at for loss in losses], default=state.asked_at)
    answer = BeginGeneration(
        generation=state.generation + 1,
        members=members,
        ports={r: (a.links_port, a.store_port) for r, a in state.asked.items()},
        why=_sentence("; ".join(reasons) or "the program has asked for it"),
        lost=tuple(rank for rank in state.members if rank not in stayed),
        added=added,
        seconds=now - began,
    )
    state = replace(
        state,
        generation=answer.generation,
        members=members,
        newcomers=state.newcomers - {*added},
        brought=state.brought - {*added},
        asked={},
        asked_at=inf,
    )
    return state, [answer]


def _schedule(state: Membership, rank: int, now: float) -> Membership:
    """Set the time at which an instance without any process is started again."""
    kinds = Exited | ShimLost
    ends = [loss.event for loss in state.losses if isinstance(loss.event, kinds)]
    before = sum(event.rank == rank for event in ends) - 1
    wait = restart_wait(before - 1) if before else FIRST_START_S
    return replace(state, starts={**state.starts, rank: now + wait})


def _start_due(state: Membership, now: float) -> Step:
    due = {rank for rank, at in state.starts.items() if at <= now}
    if not due:
        return state, []
    state = replace(
        state,
        starts=_without(state.starts, due),
        living=state.living | due,
        newcomers=state.newcomers | due,
        restarts_left=state.restarts_left - len(due),
        num_restarts=state.num_restarts + len(due),
    )
    return state, [StartAgain(rank=rank) for rank in sorted(due)]


def _refuse_all(state: Membership, sentence: str) -> Step:
    refusals: list[Answer] = [_refusal(rank, sentence) for rank in state.asked]
    return replace(state, asked={}, asked_at=inf), refusals


def _refusal(rank: int, sentence: str) -> TellMember:
    return TellMember(rank=rank, kind=protocol.REFORM_REFUSED, value=sentence)


def _too_few(state: Membership) -> str:
    count = len(state.available)
    verb = "is" if count == 1 else "are"
    least = counted(state.least, "instance")
    if state.least_hosts > 1:
        least += f" on {counted(state.least_hosts, 'host')}"
    return (
        f"Only {counted(count, 'instance')} of the job {verb} left, but it needs at "
        f"least {least}: see --min-instances and --nnodes."
    )


def _describe(state: Membership, event: Event) -> str:
    """Return what has happened, as a part of a sentence."""
    match event:
        case Exited(rank=rank, status=status) if os.WIFSIGNALED(status):
            name = signal_name(os.WTERMSIG(status))
            return f"instance {rank}{_on(state, rank)} was killed by {name}"
        case Exited(rank=rank, status=status):
            code = os.WEXITSTATUS(status)
            return f"instance {rank}{_on(state, rank)} exited with code {code}"
        case ShimLost(rank=rank):
            return f"the supervisor of instance {rank}{_on(state, rank)} was killed"
        case Refused(rank=rank):
            return f"instance {rank}{_on(state, rank)} could not be started again"
        case HostLost(host=host, ranks=ranks) if ranks:
            return f"the host {host} was lost with {describe_instances(ranks)}"
        case HostLost(host=host):
            return f"the host {host} was lost"
    raise TypeError(event)


def _on(state: Membership, rank: int) -> str:
    return f" ({state.hosts[rank]})" if rank < len(state.hosts) else ""


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _without(values: Mapping[int, Any], ranks: Set[int]) -> dict[int, Any]:
    return {rank: value for rank, value in values.items() if rank not in ranks}
