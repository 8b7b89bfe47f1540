"""Carries out what membership decides: messages to members, and starts of instances."""

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from poprun.host.remote_host import RemoteHost
from poprun.output.streams import Streams
from poprun.supervise import membership
from poprun.supervise.hosts import Hosts
from poprun.supervise.job_state import JobState, Phase
from poprun.supervise.membership import Membership
from poprun.supervise.stopping import KILL_TIMEOUT_S
from poprun.wire import codec, protocol
from poprun.wire.events import Event, MembersChanged, StartedAgain, UsageMeasured

# How long instances that have left the job may take to end by themselves.
LEAVE_S = 10.0
# Returns the variables of each member of a generation.
Environs = Callable[
    [membership.BeginGeneration], Mapping[int, Mapping[str, str | None]]
]


@dataclass(slots=True)
class _EndingHost:
    host: RemoteHost
    why: str
    # When to send what next to instances that do not end by themselves.
    acts_at: float = inf
    last_signal: int = 0

    def act(self, now: float, grace: float) -> None:
        match self.last_signal:
            case 0:
                self.host.tell(protocol.SIGNAL, signal.SIGTERM)
                self.last_signal, self.acts_at = signal.SIGTERM, now + grace
            case signal.SIGTERM:
                self.host.tell(protocol.KILL)
                self.last_signal, self.acts_at = signal.SIGKILL, now + KILL_TIMEOUT_S
            case _:
                self.host.lose_closed(self.why)


class MemberChanges:
    """The changes of a job's members in one attempt.

    Args:
        emit: Is called with each event.
        environs: Is called for each generation after the first.
    """

    def __init__(
        self,
        hosts: Hosts,
        streams: Streams,
        emit: Callable[[Event], None],
        environs: Environs,
    ) -> None:
        self._hosts, self._streams = hosts, streams
        self._emit, self._environs = emit, environs
        # The instances that are started again once their streams have ended.
        self._to_start: list[int] = []
        # The hosts that have failed to join, or are to leave.
        self._to_end: list[_EndingHost] = []

    def act(self, answer: membership.Answer) -> None:
        match answer:
            case membership.TellMember(rank=rank, kind=kind, value=value):
                self._tell_member(rank, kind, value)
            case membership.BeginGeneration():
                self._begin_generation(answer)
            case membership.StartAgain(rank=rank):
                self._to_start.append(rank)
            case membership.KillInstance(rank=rank):
                self._hosts.of(rank).tell(protocol.KILL_INSTANCE, rank)
            case membership.EndJoin(rank=rank, why=why):
                self._to_end.append(_EndingHost(self._remote(rank), why))
            case membership.LetGo(rank=rank, why=why):
                at = time.monotonic() + LEAVE_S
                self._to_end.append(_EndingHost(self._remote(rank), why, at))
            case membership.LeaveHost(ranks=ranks):
                hosts = map(self._hosts.of, ranks)
                others = (host for host in hosts if isinstance(host, RemoteHost))
                if other := next(others, None):
                    other.lose_closed("other hosts get no answer from it, only poprun")
            case membership.SuspectHosts(ranks=missing):
                for host in self._hosts:
                    if not {*missing}.isdisjoint(host.ranks):
                        host.suspect_loss()

    def _remote(self, rank: int) -> RemoteHost:
        host = self._hosts.of(rank)
        # poprun's own host never joins or leaves.
        assert isinstance(host, RemoteHost)
        return host

    def note_end(self, rank: int, present: Membership) -> None:
        """Let all instances know that one has ended, or that its host is lost."""
        # Another shim or host may have it before its streams end.
        self._to_start = [each for each in self._to_start if each != rank]
        self._hosts.tell(protocol.NOTE_END, rank)
        if present.generation and rank in present.members:
            place = present.members.index(rank)
            self._hosts.tell(protocol.NOTE_LEFT, present.generation, place)

    def _tell_member(self, rank: int, kind: int, value: Any) -> None:
        is_sentence = kind in (protocol.REFORM_REFUSED, protocol.LEFT)
        content = value.encode() if is_sentence else codec.json_field(value)
        self._hosts.of(rank).tell(protocol.TELL_MEMBER, rank, kind, content)

    def _begin_generation(self, new: membership.BeginGeneration) -> None:
        """Send the members of a generation their variables, and report the change."""
        head = {"generation": new.generation, "why": new.why}
        for rank, environ in self._environs(new).items():
            value = {**head, "environ": environ}
            self._tell_member(rank, protocol.REFORMED, value)
        changed = MembersChanged(
            generation=new.generation,
            members=new.members,
            lost=new.lost,
            added=new.added,
            why=new.why,
            seconds=new.seconds,
        )
        self._emit(changed)

    @property
    def deadline(self) -> float:
        """When instances on a host that is to leave must have ended."""
        return min((ending.acts_at for ending in self._to_end), default=inf)

    def end_hosts(self, state: JobState, now: float) -> None:
        """End the connections to hosts that have failed to join, or are to leave.

        First the rest of their instances' output is read: it may say why.
        """
        # A job that stops ends all of its hosts.
        for ending in self._to_end if state.phase is Phase.RUNNING else ():
            host = ending.host
            has_ended = ending.acts_at == inf or state.gone.issuperset(host.ranks)
            if has_ended and not any(map(self._streams.has_open, host.ranks)):
                host.lose_closed(ending.why)
            elif now >= ending.acts_at:
                ending.act(now, state.grace)
        left = [each for each in self._to_end if not each.host.finished]
        self._to_end = left if state.phase is Phase.RUNNING else []

    def start_again(self, state: JobState) -> None:
        """Start the programs of instances again whose streams have ended."""
        for rank in [r for r in self._to_start if not self._streams.has_open(r)]:
            self._to_start.remove(rank)
            # Its host may be lost by now, or the last member have ended.
            may_run = rank in state.membership.living
            if state.phase is Phase.RUNNING and may_run:
                self._emit(StartedAgain(rank=rank))
                self._hosts.of(rank).tell(protocol.START_AGAIN, rank)

    def with_instances(
        self, usage: UsageMeasured, present: Membership
    ) -> UsageMeasured:
        """Return a measurement with instances, not with ranks in their generation."""
        if not present.generation:
            return usage
        missing, members = (
            tuple(
                present.members[rank] for rank in ranks if rank < len(present.members)
            )
            for ranks in (usage.missing, usage.members)
        )
        return replace(usage, missing=missing, members=members)
