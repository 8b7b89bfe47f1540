"""Hosts that come, return or leave while the instances of an elastic job run on.

They are looked for by another process (host_search.py), connected, and asked what an
attempt has to know of a host. The questions are asked one by one from the supervisor's
loop, which does not wait for the answers. A host that fails on the way is looked for
again later.
"""

import time
from collections import Counter
from collections.abc import (
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from math import inf
from typing import Any, NamedTuple, Protocol

from poprun.errors import PoprunError
from poprun.helpers.load import timeout_factor
from poprun.host.host_link import HostLink
from poprun.host.remote_host import RemoteHost
from poprun.host_specs import HostSpec, parse_hosts
from poprun.output.waiter import READ, WRITE, Interest
from poprun.reach.connections.agent_connection import AgentConnection
from poprun.reach.connections.agents import ANSWER_LIMIT_S, AgentStart
from poprun.reach.host_search import SearchQuestion
from poprun.supervise.host_search import ARE_NEEDED, HostSearch
from poprun.supervise.membership import Membership
from poprun.wire import codec, protocol
from poprun.wire.events import HostLeaves

# Follows the clause that a host is named no longer.
OWN_HOST = ", but poprun itself runs there: it stays until the next attempt."


class Question(NamedTuple):
    """A question to an agent: its kind and value, and the type of the answer."""

    kind: int
    value: Any
    answer_type: Any


# Yields questions to the agent of a host, gets the answers, and returns the function
# that lets the host join: its agent gets ready for the instances there.
Handshake = Generator[Question, Any, Callable[[], RemoteHost]]


class Growth(Protocol):
    """The rules by which a running attempt takes hosts in, and its plan."""

    def question(self, losses: Counter[str]) -> SearchQuestion | None:
        """Return what to ask the search now; None if there is no room for a host.

        Args:
            losses: How often each host was lost, or failed when it was to join.
        """

    def search(self, question: SearchQuestion) -> HostSearch: ...

    def connect(self, host: HostSpec) -> AgentStart: ...

    def handshake(self, host: HostSpec, connection: AgentConnection) -> Handshake: ...


class Arrivals:
    """The hosts that are to join, from the search for them to their links.

    Args:
        warn: Says why a host cannot join, or cannot leave.
    """

    def __init__(self, growth: Growth, warn: Callable[[str], None]) -> None:
        self._growth, self._warn = growth, warn
        self._search: HostSearch | None = None
        self._joining: list[_Joining] = []
        # The commands of hosts that do not join, which end by themselves, and the
        # searches that have ended.
        self._leaving: list[AgentConnection] = []
        self._ended: list[HostSearch] = []
        self._losses: Counter[str] = Counter()
        # The hosts that cannot leave, and have been named in a warning.
        self._kept: set[str] = set()

    def note_loss(self, host: str) -> None:
        """Take in that a host was lost: another search asks for it, after a while."""
        self._losses[host] += 1
        self._end_search()

    def note_exits(self, ended: Mapping[int, int]) -> None:
        """Take in the wait statuses of child processes, by pid."""
        for joining in self._joining:
            joining.note_exits(ended)

    def look(self) -> Iterator[RemoteHost]:
        """Look for hosts, let them join, and yield those that are ready."""
        for joining in list(self._joining):
            if joined := joining.take():
                self._joining.remove(joining)
                self._end_search()
                yield joined
            elif joining.failure:
                self._warn(joining.failure)
                self._remove(joining)
                self.note_loss(joining.start.host.name)
        if self._search is None:
            if question := self._growth.question(self._losses):
                self._search = self._growth.search(question)
                self._search.begin()
        elif not self._joining and (found := self._search.take()):
            hosts = parse_hosts(",".join(found.hosts))
            for host in hosts:
                if host.name in found.new_hosts:
                    self._connect(host)

    def _connect(self, host: HostSpec) -> None:
        try:
            start = self._growth.connect(host)
            start.begin()
        except PoprunError as error:
            self._warn(str(error))
            self.note_loss(host.name)
        else:
            self._joining.append(_Joining(self._growth, start))

    def leaves(
        self, hosts: Iterable[HostLink], present: Membership
    ) -> Iterator[HostLeaves]:
        """Yield the hosts that are to leave: named no longer, and not needed.

        The last ones to join leave first, also those that are not members yet.
        """
        search, going = self._search, {*present.leaving, *present.left}
        if search is None:
            return
        for host in reversed([*hosts]):
            if going.issuperset(host.ranks):
                continue
            # The list may have another name of poprun's own machine than its link.
            name = present.hosts[min(host.ranks)]
            why = search.describe_missing(name)
            if name not in search.missing:
                continue
            if not isinstance(host, RemoteHost):
                self._keep(name, why + OWN_HOST)
            elif not present.can_do_without(going.union(host.ranks)):
                # A host that joins may take its place.
                if not (self._joining or present.brought):
                    self._keep(name, why + ARE_NEEDED)
            else:
                going.update(host.ranks)
                self._kept.discard(name)
                yield HostLeaves(host=name, ranks=tuple(host.ranks), why=why)

    def _keep(self, host: str, why: str) -> None:
        if host not in self._kept:
            self._kept.add(host)
            self._warn(why[:1].upper() + why[1:])

    def end(self) -> None:
        """Let no host join or leave any more."""
        self._end_search()
        for joining in list(self._joining):
            self._remove(joining)

    def finish(self) -> None:
        """Wait until nothing is left of hosts that have not joined, and of searches."""
        for connection in self._leaving:
            connection.end()
        for search in self._ended:
            search.finish()

    def send_signal(self, number: int) -> None:
        """Stop or continue the search."""
        if self._search is not None:
            self._search.send_signal(number)

    def interests(self, now: float) -> Iterator[Interest]:
        for part in self._parts:
            yield from part.interests(now)

    def deadline(self, now: float) -> float:
        ends = [connection.exits_by for connection in self._leaving]
        return min([part.deadline(now) for part in self._parts] + ends, default=inf)

    def tick(self, now: float) -> None:
        for part in self._parts:
            part.tick(now)
        for connection in [each for each in self._leaving if each.has_exited(now)]:
            self._leaving.remove(connection)
            connection.end()

    @property
    def _parts(self) -> Sequence["HostSearch | _Joining"]:
        searches = () if self._search is None else (self._search,)
        return (*searches, *self._joining)

    def _end_search(self) -> None:
        if self._search is not None:
            self._search.end()
            self._ended = [each for each in self._ended if each.is_ending]
            self._ended.append(self._search)
            self._search = None

    def _remove(self, joining: "_Joining") -> None:
        self._joining.remove(joining)
        if (connection := joining.start.connection) is not None:
            connection.hang_up()
            self._leaving.append(connection)


class _Joining:
    """A host that is connected and asked."""

    def __init__(self, growth: Growth, start: AgentStart) -> None:
        self.start = start
        # A sentence, once it has failed.
        self.failure = ""
        # Lets it join, once all is answered.
        self._admit: Callable[[], RemoteHost] | None = None
        self._growth = growth
        self._limit_s = ANSWER_LIMIT_S * timeout_factor()
        self._ends_by = time.monotonic() + self._limit_s
        self._handshake: Handshake | None = None
        self._question: Question | None = None

    def interests(self, now: float) -> Iterator[Interest]:
        connection = self.start.connection
        if not self._is_open or connection is None or self.start.is_closed:
            return
        yield Interest(connection.fileno(), READ, self._receive)
        # The argv in a question may be longer than the socket holds.
        if connection.channel.has_unsent:
            yield Interest(connection.fileno(), WRITE, connection.channel.flush)

    def deadline(self, now: float) -> float:
        if not self._is_open:
            return 0.0
        is_started = self.start.connection is not None
        return min(self.start.deadline, self._ends_by if is_started else inf)

    def tick(self, now: float) -> None:
        if not self._is_open:
            return
        try:
            self.start.tick(now)
            self.failure = self.start.failure
        except PoprunError as error:
            self.failure = str(error)
        if self.failure:
            return
        if now >= self._ends_by and self._handshake is None:
            self.start.give_up(self._limit_s)
            self.failure = self.start.failure
        elif now >= self._ends_by:
            self.failure = (
                f"The host {self.start.host.name} cannot join: its agent does not "
                f"answer within {self._limit_s:.0f} s."
            )

    def take(self) -> RemoteHost | None:
        """Let the host join if it has answered all, and return it.

        Not before: the plan must not have a host that the supervisor does not take.
        """
        if self._admit is None:
            return None
        try:
            return self._admit()
        except PoprunError as error:
            self.failure = str(error)
            return None

    @property
    def _is_open(self) -> bool:
        return not self.failure and self._admit is None

    def note_exits(self, ended: Mapping[int, int]) -> None:
        connection = self.start.connection
        if connection is not None and connection.pid in ended:
            connection.note_exit(ended[connection.pid])

    def _receive(self) -> None:
        start, connection = self.start, self.start.connection
        if connection is None or not self._is_open:
            return
        if self._handshake is None:
            start.receive()
            self.failure = start.failure
            if connection.has_answered and not self.failure:
                self._handshake = self._growth.handshake(start.host, connection)
                self._go_on(connection, None)
            return
        received = connection.receive()
        if received is None:
            self.failure = (
                f"The host {self.start.host.name} cannot join: the connection to it "
                "has ended."
            )
        for kind, fields in received or ():
            if kind != protocol.ALIVE and self._question is not None:
                question, self._question = self._question, None
                try:
                    answer = connection.read_answer(kind, fields, question.answer_type)
                except PoprunError as error:
                    self.failure = str(error)
                    return
                self._go_on(connection, answer)

    def _go_on(self, connection: AgentConnection, answer: Any) -> None:
        """Pass an answer on, and ask the next question."""
        assert self._handshake is not None
        self._ends_by = time.monotonic() + self._limit_s
        try:
            self._question = self._handshake.send(answer)
        except StopIteration as stop:
            self._admit = stop.value
        except PoprunError as error:
            self.failure = str(error)
        else:
            question = self._question
            connection.channel.send(codec.pack_json(question.kind, question.value))
