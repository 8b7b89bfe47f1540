"""The members of a job that goes on without lost instances, and answers: values.

The members form a generation, from 0 on. An instance that was started later belongs to
no generation until it asks for one.

`rank` in events is the number of an instance in the attempt. Its rank in a generation
is its position among the members.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import inf
from typing import Any

from poprun.plan.values import NOT_ELASTIC
from poprun.wire.events import (
    Event,
    Exited,
    HostLost,
    ReformAsked,
    Refused,
    ShimLost,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """An event after which instances are not there any more, in a generation.

    of_members: Whether a member is among them, and not only newcomers.
    is_harmless: Whether it is no failure of the job in any case: all of them are
        newcomers on a host that has come, or have left the job.
    """

    event: Event
    generation: int
    at: float
    why: str
    of_members: bool
    is_harmless: bool


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
class EndJoin:
    """Take the host that has brought an instance as lost, once its output has come."""

    rank: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LetGo:
    """Take the host of an instance as lost, once its instances have had time to end."""

    rank: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectHosts:
    """Find out earlier whether the hosts of instances are lost: others have left them.

    popdist detects that an instance's host does not answer before poprun does.
    """

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveHost:
    """Take the host of the first of these instances as lost that is not poprun's own.

    It answers poprun, but no other hosts.
    """

    ranks: tuple[int, ...]


Answer = (
    TellMember
    | BeginGeneration
    | StartAgain
    | KillInstance
    | EndJoin
    | LetGo
    | SuspectHosts
    | LeaveHost
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The members of a job, its living instances, and requests to re-form."""

    # Why the job stops when an instance is lost; "" if it can go on.
    refusal: str = NOT_ELASTIC
    # The smallest and largest number of members, and the smallest one of their hosts.
    least: int = 1
    most: float = inf
    least_hosts: int = 1
    # How many more times an instance may be started again, and how many have been.
    restarts_left: int = 0
    num_restarts: int = 0
    # The host of each instance.
    hosts: Mapping[int, str] = field(default_factory=dict)
    generation: int = 0
    members: tuple[int, ...] = ()
    # When it began, and the hosts of its members that did not answer others then.
    began_at: float = -inf
    silent_hosts: Set[str] = frozenset()
    # The instances whose programs may run: members and newcomers.
    living: Set[int] = frozenset()
    # Instances that were started later and have no generation yet: all, and the ones on
    # hosts that join.
    newcomers: Set[int] = frozenset()
    brought: Set[int] = frozenset()
    # The instances that are to leave with their hosts, and those that have left, each
    # with a clause that says why.
    leaving: Mapping[int, str] = field(default_factory=dict)
    left: Mapping[int, str] = field(default_factory=dict)
    # The instances with a process that can re-form.
    able: Set[int] = frozenset()
    # The requests for the next generation, and the time of the first of them.
    asked: Mapping[int, ReformAsked] = field(default_factory=dict)
    asked_at: float = inf
    # By member: when the others stop waiting for it, because its process that used
    # popdist has ended and its instance goes on. `departed` are those whose time is up.
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
    def ready(self) -> Mapping[int, ReformAsked]:
        """The requests that count: hosts join as long as there is room."""
        complete = self._complete
        waiting = [rank for rank in complete if rank in self.brought]
        too_many = {*waiting} - self._with_room(waiting)
        return {r: asked for r, asked in complete.items() if r not in too_many}

    @property
    def eligible(self) -> Set[int]:
        """The available instances, but for those for which there is no room."""
        return (self.available - self.brought) | self._with_room(sorted(self.brought))

    @property
    def room(self) -> float:
        """How many more instances can join."""
        present = self.available | self.starts.keys()
        return self.most - len(present - self.brought)

    def _with_room(self, waiting: Sequence[int]) -> Set[int]:
        """Return those of these instances on hosts for which there is room.

        Args:
            waiting: Instances on hosts that join. The first ones get the room.
        """
        room = self.room
        fitting: set[str] = set()
        for host, number in Counter(self.hosts[rank] for rank in waiting).items():
            if number <= room:
                room -= number
                fitting.add(host)
        return {rank for rank in waiting if self.hosts[rank] in fitting}

    @property
    def _complete(self) -> Mapping[int, ReformAsked]:
        """The requests, but for those on hosts that wait for others of their instances.

        All instances of a host join at once.
        """
        awaited = {self.hosts[rank] for rank in self.brought - self.asked.keys()}
        early = {rank for rank in self.brought if self.hosts[rank] in awaited}
        return {r: asked for r, asked in self.asked.items() if r not in early}

    def companions(self, rank: int) -> Set[int]:
        """Return the newcomers on the host that has brought an instance."""
        return {r for r in self.brought if self.hosts[r] == self.hosts[rank]}

    @property
    def available(self) -> Set[int]:
        """The living instances, but for those that cannot re-form any more."""
        return self.living - self.departed

    @property
    def goes_on(self) -> bool:
        """Whether the job goes on without the instances that are lost."""
        may_be_enough = self.lost_late_newcomers or self.may_be_enough
        return self.can_reform and may_be_enough

    @property
    def may_be_enough(self) -> bool:
        """Whether the job may go on with those that live or are started again.

        Instances on hosts for which there is no room yet count as living.
        """
        next_ones = self.eligible | self.starts.keys()
        return self.are_enough(self.available) and self.are_enough(next_ones)

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

    def can_do_without(self, ranks: Collection[int]) -> bool:
        """Return whether the others are enough, with those that are ready to join."""
        return self.are_enough({*self.living_members, *self._complete} - {*ranks})

    def is_of_left(self, event: Event) -> bool:
        """Return whether an event is the end of instances that have left the job."""
        match event:
            case HostLost(ranks=ranks):
                return bool(ranks) and self.left.keys() >= {*ranks}
            case Exited(rank=rank) | Refused(rank=rank) | ShimLost(rank=rank):
                return rank in self.left
        return False

    def are_enough(self, ranks: Collection[int]) -> bool:
        """Return whether the job may go on with these instances."""
        hosts = {self.hosts[rank] for rank in ranks}
        return len(ranks) >= self.least and len(hosts) >= self.least_hosts

    @property
    def possible_starts(self) -> Mapping[int, float]:
        """The starts, but for those on hosts that are to leave: they may stay yet.

        If the members are too few without them, the hosts stay for now.
        """
        if not self.leaving or not self.are_enough(self.living_members):
            return self.starts
        return {r: at for r, at in self.starts.items() if r not in self.leaving}

    @property
    def deadline(self) -> float:
        """When an instance is to be started again, or waited for no longer."""
        moments = *self.possible_starts.values(), *self.departures.values()
        return min(moments, default=inf)

    @property
    def present_losses(self) -> list[Loss]:
        """The losses since the present generation began."""
        return [loss for loss in self.losses if loss.generation == self.generation]

    def survived(self, *, was_stopped: bool) -> list[Event]:
        """Return the events that count as no failure of the job.

        Args:
            was_stopped: Whether the job was stopped. Present losses may be the cause,
                unless they are harmless.
        """
        present = self.present_losses if was_stopped else []
        causes = [loss for loss in present if not loss.is_harmless]
        return [loss.event for loss in self.losses if loss not in causes]


def first_members(hosts: Sequence[str], **settings: Any) -> Membership:
    """Return the membership of an attempt that is about to start.

    Args:
        hosts: The host of each instance.
    """
    by_rank = dict(enumerate(hosts))
    living = frozenset(by_rank)
    return Membership(members=(*by_rank,), living=living, hosts=by_rank, **settings)
