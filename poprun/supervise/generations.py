"""How the members of a job change. Pure.

    (membership, event, now) -> (membership, answers)

When instances are lost, the others leave their generation: each asks for the next one,
and all get it once no living member is missing. An instance that was started later asks
for one when it is ready, and the members are told then.
"""

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import replace
from itertools import groupby
from math import inf
from typing import Any

from poprun.backoff import restart_wait
from poprun.supervise.change_sentences import (
    as_sentence,
    describe_arrival,
    describe_changes,
    describe_lack,
    describe_left,
    describe_loss,
    describe_silence,
    on_host,
)
from poprun.supervise.membership import (
    Answer,
    BeginGeneration,
    EndJoin,
    KillInstance,
    LeaveHost,
    LetGo,
    Loss,
    Membership,
    StartAgain,
    SuspectHosts,
    TellMember,
)
from poprun.wire import protocol
from poprun.wire.events import (
    CanReform,
    Clean,
    Event,
    Exited,
    HostJoins,
    HostLeaves,
    HostLost,
    ReformAsked,
    ReformEnded,
    Refused,
    ShimLost,
    Tick,
)
from poprun.words import describe_instances

ENDING = "The job is ending, so its instances cannot re-form."
LOST, ADDED, LEAVES = "lost", "added", "leaves"
# The wait before an instance is started again for the first time: the others may be
# lost in the same moment.
FIRST_START_S = 0.25
# How long the others wait for a member after the end of its process that used popdist.
# Usually its instance ends with the process; a wrapper around it may go on.
DEPART_S = 2.0
# Hosts of a generation that do not answer others again within this time are left out.
SILENT_AGAIN_S = 30.0

Step = tuple[Membership, list[Answer]]


def decide(state: Membership, event: Event, now: float) -> Step:
    """Return the membership after an event, and what to do for it."""
    ready = state.ready.keys() if state.brought else ()
    state, answers = _react(state, event, now)
    if state.is_over or not state.brought:
        return state, answers
    # Hosts that are complete now, or for which there is room now.
    joining = (state.brought & state.ready.keys()).difference(ready)
    if not joining:
        return state, answers
    answers += _tell_of_hosts(state, joining)
    state, more = _advance(state, now)
    return state, answers + more


def _react(state: Membership, event: Event, now: float) -> Step:
    match event:
        case CanReform(rank=rank):
            value = {"generation": state.generation, "refusal": _refuse(state, rank)}
            answer = TellMember(rank=rank, kind=protocol.ELASTIC_KNOWN, value=value)
            is_left_behind = rank in state.departed and rank not in state.members
            state = state if is_left_behind else _with_process(state, rank)
            state = replace(state, able=state.able | ({rank} & state.living))
            return state, [answer, *_tell_late(state, rank)]
        case ReformAsked():
            return _ask(state, event, now)
        case ReformEnded(rank=rank):
            # Usually its instance ends at the same time.
            is_awaited = rank in state.living_members and not state.is_over
            at = {rank: now + DEPART_S} if is_awaited and not state.refusal else {}
            state = replace(state, departures={**state.departures, **at})
            return replace(state, asked=_without(state.asked, {rank})), []
        case Exited() | Refused() | ShimLost() | HostLost() if state.is_of_left(event):
            return _with_loss(state, event, now, is_harmless=True), []
    if state.refusal or state.is_over:
        return state, []
    match event:
        case Exited(rank=rank) if rank in state.newcomers and not state.is_finishing:
            # It has taken no part in the job, so the exit code 0 is no end of it.
            return _lose_one(state, event, rank, now)
        case Exited(rank=rank, status=0) if rank in state.living:
            # It may be one that was started again: the members are asked then.
            if rank not in state.departed:
                state = replace(state, is_finishing=True, starts={})
            return _advance(_without_ranks(state, {rank}), now)
        case Exited(rank=rank, status=status) if status:
            return _lose_one(state, event, rank, now)
        case ShimLost(rank=rank) | Refused(rank=rank):
            return _lose_one(state, event, rank, now)
        case HostLost(ranks=ranks):
            return _lose(state, event, {*ranks}, now)
        case HostLeaves():
            return _announce_leave(state, event)
        case HostJoins(host=host, ranks=ranks):
            return replace(
                state,
                left=_without(state.left, {*ranks}),
                hosts={**state.hosts, **dict.fromkeys(ranks, host)},
                living=state.living | {*ranks},
                newcomers=state.newcomers | {*ranks},
                brought=state.brought | {*ranks},
            ), []
        case Clean(rank=rank) if rank in state.starts:
            return _schedule(state, rank, now), []
        case Tick():
            state, answers = _depart(state, now)
            state, more = _start_due(state, now)
            return state, answers + more
    return state, []


def end(state: Membership) -> Step:
    """Stop re-forming: refuse the requests that wait, and all later ones."""
    state, answers = _refuse_all(state, ENDING)
    return replace(state, is_over=True, starts={}, departures={}), answers


def _refuse(state: Membership, rank: int) -> str:
    """Return why an instance cannot re-form, or ""."""
    is_ending = state.is_over or rank not in state.living
    why = ENDING if is_ending else ""
    if rank in state.left:
        why = describe_left(state, rank)
    return state.refusal or why


def _ask(state: Membership, event: ReformAsked, now: float) -> Step:
    rank = event.rank
    if rank in state.left:
        return state, [_left(state, rank)]
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
        answers += _tell_of_silence(state, event)
    else:
        answers = _tell_of_newcomer(state, rank)
    state, more = _advance(state, now)
    return state, answers + more


def _tell_of_silence(state: Membership, event: ReformAsked) -> list[Answer]:
    """Return the messages to members that may still wait for this one to connect."""
    why = describe_silence(state, event)
    if not why or any(ask.silent for ask in state.asked.values() if ask != event):
        return []
    return _tell_members(state, LOST, why)


def _tell_late(state: Membership, rank: int) -> list[Answer]:
    """Return the message to a member that has not been able to hear of requests.

    It would wait for members that have left its generation.
    """
    leavers = [ask for r, ask in state.asked.items() if r not in state.newcomers]
    if not leavers or rank not in state.living_members:
        return []
    silences = [describe_silence(state, ask) for ask in leavers]
    ranks = sorted(ask.rank for ask in leavers)
    verb = "re-forms" if len(ranks) == 1 else "re-form"
    why = next(filter(None, silences), f"{describe_instances(ranks)} {verb}")
    value = {"kind": LOST, "why": as_sentence(why)}
    return [TellMember(rank=rank, kind=protocol.MEMBERS_CHANGE, value=value)]


def _lose_one(state: Membership, event: Event, rank: int, now: float) -> Step:
    if rank not in state.brought or state.is_finishing:
        return _lose(state, event, {rank}, now)
    # The host has failed to join. Nothing is started again there: it may be broken,
    # and would use up the restarts of a healthy job.
    others = state.companions(rank) - {rank}
    why = f"{describe_loss(state, event)} before the host had joined"
    waiting = sorted(others & state.asked.keys())
    state, answers = _lose(state, event, {rank, *others}, now)
    if not state.goes_on:
        # With --keep-going they would wait on.
        return state, [*answers, *(_refusal(other, ENDING) for other in waiting)]
    kills = [KillInstance(rank=other) for other in sorted(others)]
    return state, [*answers, *kills, EndJoin(rank=rank, why=why)]


def _lose(state: Membership, event: Event, ranks: Set[int], now: float) -> Step:
    lost, brought = ranks & state.living, state.brought
    has_lost_members = not lost.isdisjoint({*state.members} - state.newcomers)
    why = describe_loss(state, event)
    starts = dict(state.starts)
    if not isinstance(event, Exited):
        # The supervisor that could start them is lost.
        starts = _without(starts, ranks)
    if len(starts) < state.restarts_left and _may_start_again(state, event):
        starts |= dict.fromkeys(lost, inf)
    # The members that still work do not need those: none re-forms any more for them.
    is_late = state.is_finishing and bool(lost) and not has_lost_members
    state = replace(
        _without_ranks(state, ranks), starts=starts, lost_late_newcomers=is_late
    )
    if state.goes_on or not lost:
        state = _with_loss(
            state,
            event,
            now,
            of_members=has_lost_members,
            is_harmless=state.goes_on and lost <= brought,
        )
    if not lost:
        return state, []
    if not state.goes_on:
        # With --keep-going the others go on, but without those that are lost.
        return _advance(replace(state, starts=_without(state.starts, lost)), now)
    if isinstance(event, ShimLost) and event.rank in state.starts:
        # The kernel has killed the program, too.
        state = _schedule(state, event.rank, now)
    answers = _tell_members(state, LOST, why) if has_lost_members else []
    state, more = _advance(state, now)
    return state, answers + more


def _may_start_again(state: Membership, event: Event) -> bool:
    match event:
        case Exited(rank=rank) | ShimLost(rank=rank, is_final=False):
            # Hosts may have joined in the place of one that was left behind.
            has_place = rank in state.available or state.room > 0
            is_possible = not state.is_finishing and rank not in state.brought
            return has_place and is_possible
    return False


def _with_loss(
    state: Membership,
    event: Event,
    now: float,
    *,
    of_members: bool = False,
    is_harmless: bool,
) -> Membership:
    loss = Loss(
        event=event,
        generation=state.generation,
        at=now,
        why=describe_loss(state, event),
        of_members=of_members,
        is_harmless=is_harmless,
    )
    return replace(state, losses=[*state.losses, loss])


def _announce_leave(state: Membership, event: HostLeaves) -> Step:
    """Tell the members that a host is to leave: the next generation is without it."""
    leaving = dict.fromkeys(event.ranks, event.why)
    if leaving.keys().isdisjoint(state.living_members):
        return _let_go(state, leaving)
    state = replace(state, leaving={**state.leaving, **leaving})
    return state, _tell_members(state, LEAVES, event.why)


def _let_leave(state: Membership) -> Step:
    """Let the instances go that are to leave, if the others have the newest state.

    After a loss one that is to leave may have made a commit that the others have not,
    or the state that newcomers have yet to receive. So it stays for one generation
    more, which begins with the newest state on all members.
    """
    leaving = state.leaving
    state = replace(state, leaving={})
    has_loss = any(loss.of_members for loss in state.present_losses)
    has_silent = any(ask.silent for ask in state.asked.values())
    is_orderly = not (has_loss or has_silent or state.departed & {*state.members})
    if is_orderly and state.can_do_without(leaving):
        return _let_go(state, leaving)
    return state, []


def _let_go(state: Membership, leaving: Mapping[int, str]) -> Step:
    hosts = {state.hosts[rank]: rank for rank in leaving}
    answers: list[Answer] = [
        _left(replace(state, left=leaving), rank)
        for rank in leaving
        if rank in state.asked
    ]
    answers += [LetGo(rank=rank, why=leaving[rank]) for rank in hosts.values()]
    return replace(
        _without_ranks(state, leaving.keys()),
        left={**state.left, **leaving},
        starts=_without(state.starts, leaving.keys()),
    ), answers


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


def _without_ranks(state: Membership, ranks: Set[int]) -> Membership:
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
    """Return the messages about an instance that was started again, and has asked."""
    if rank in state.leaving or rank in state.brought:
        return []
    why = f"instance {rank}{on_host(state, rank)} was started again"
    return _tell_members(state, ADDED, why)


def _tell_of_hosts(state: Membership, ranks: Set[int]) -> list[Answer]:
    """Return the messages about hosts that join: their instances have all asked."""
    answers: list[Answer] = []
    for host, own in groupby(sorted(ranks), lambda rank: state.hosts[rank]):
        answers += _tell_members(state, ADDED, describe_arrival(host, [*own]))
    return answers


def _tell_members(state: Membership, kind: str, why: str) -> list[Answer]:
    """Return the message about a change for each member that does not know of it."""
    value = {"kind": kind, "why": as_sentence(why)}
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
            # Waiting programs would report the refusal as an error.
            answers = []
        kills = [KillInstance(rank=rank) for rank in sorted(state.living)]
        return _without_ranks(state, state.living), [*answers, *kills]
    if not state.asked or not state.asked.keys() >= set(left):
        return state, []
    if not state.are_enough(state.ready):
        if state.may_be_enough:
            return state, []  # others have been started again
        return _refuse_all(state, describe_lack(state))
    state, answers = _let_leave(state)
    state, more = _begin(state, tuple(sorted(state.ready)), now)
    return state, answers + more


def _begin(state: Membership, members: tuple[int, ...], now: float) -> Step:
    losses = [loss for loss in state.present_losses if loss.of_members]
    added = tuple(rank for rank in members if rank in state.newcomers)
    stayed = {*members} - {*added}
    reasons = [*(loss.why for loss in losses), *describe_changes(state, added)]
    requests = [state.asked[rank] for rank in members]
    hosts = {rank: host for rank, host in state.hosts.items() if rank in stayed}
    silent = Counter(hosts[r] for ask in requests for r in ask.silent if r in hosts)
    left: list[Answer] = []
    if silent and not reasons:
        reasons.append(f"others had no answer from {' and '.join(sorted(silent))}")
        repeated = [h for h, _ in silent.most_common() if h in state.silent_hosts]
        if repeated and now < state.began_at + SILENT_AGAIN_S:
            one_of = {host: rank for rank, host in hosts.items()}
            # If poprun's own host is the silent one, the host of an instance that has
            # named it is left.
            complain = [ask.rank for ask in requests if ask.silent]
            silent_ones = [one_of[host] for host in repeated]
            left.append(LeaveHost(ranks=(*silent_ones, *complain)))
    began = min([loss.at for loss in losses], default=state.asked_at)
    answer = BeginGeneration(
        generation=state.generation + 1,
        members=members,
        ports={ask.rank: (ask.links_port, ask.store_port) for ask in requests},
        why=as_sentence("; ".join(reasons) or "the program has asked for it"),
        lost=tuple(rank for rank in state.members if rank not in stayed),
        added=added,
        # A Tick has an earlier time than the events that came just before it.
        seconds=max(0.0, now - began),
    )
    early = _without(state.asked, {*members})
    state = replace(
        state,
        generation=answer.generation,
        members=members,
        began_at=now,
        silent_hosts=frozenset(silent),
        newcomers=state.newcomers - {*added},
        brought=state.brought - {*added},
        asked=early,
        asked_at=now if early else inf,
    )
    return state, [answer, *left]


def _schedule(state: Membership, rank: int, now: float) -> Membership:
    """Set the time at which an instance without any process is started again."""
    kinds = Exited | ShimLost
    ends = [loss.event for loss in state.losses if isinstance(loss.event, kinds)]
    before = sum(event.rank == rank for event in ends) - 1
    wait = restart_wait(before - 1) if before else FIRST_START_S
    return replace(state, starts={**state.starts, rank: now + wait})


def _start_due(state: Membership, now: float) -> Step:
    due = {rank for rank, at in state.possible_starts.items() if at <= now}
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


def _left(state: Membership, rank: int) -> TellMember:
    why = describe_left(state, rank)
    return TellMember(rank=rank, kind=protocol.LEFT, value=why)


def _without(values: Mapping[int, Any], ranks: Set[int]) -> dict[int, Any]:
    return {rank: value for rank, value in values.items() if rank not in ranks}
