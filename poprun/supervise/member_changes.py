"""Carries out what membership decides: messages to members, and starts of instances."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from poprun.output.streams import Streams
from poprun.supervise import membership
from poprun.supervise.hosts import Hosts
from poprun.supervise.membership import Membership
from poprun.supervise.stopping import JobState, Phase
from poprun.wire import codec, protocol
from poprun.wire.events import Event, MembersChanged, StartedAgain, UsageMeasured

# Returns the variables of each member of a generation.
Environs = Callable[
    [membership.BeginGeneration], Mapping[int, Mapping[str, str | None]]
]


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
            case membership.SuspectHosts(ranks=missing):
                for host in self._hosts:
                    if not {*missing}.isdisjoint(host.ranks):
                        host.suspect_loss()

    def note_end(self, rank: int, present: Membership) -> None:
        """Let all instances know that one has ended, or that its host is lost."""
        # Another shim or host may have it before its streams end.
        self._to_start = [each for each in self._to_start if each != rank]
        self._hosts.tell(protocol.NOTE_END, rank)
        if present.generation and rank in present.members:
            place = present.members.index(rank)
            self._hosts.tell(protocol.NOTE_LEFT, present.generation, place)

    def _tell_member(self, rank: int, kind: int, value: Any) -> None:
        is_sentence = kind == protocol.REFORM_REFUSED
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
