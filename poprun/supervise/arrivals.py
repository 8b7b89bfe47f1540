"""Hosts that come, or return, while the instances of an elastic job run on.

They are looked for by another process (host_search.py), connected, and asked what an
attempt has to know of a host. The questions are asked one by one from the supervisor's
loop, which does not wait for the answers. A host that fails on the way is looked for
again later.
"""

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from math import inf
from typing import Any, NamedTuple, Protocol

from poprun.errors import PoprunError
from poprun.helpers.load import timeout_factor
from poprun.host.remote_host import RemoteHost
from poprun.host_specs import HostSpec, parse_hosts
from poprun.output.waiter import READ, Interest
from poprun.reach.agent_connection import AgentConnection
from poprun.reach.agents import ANSWER_LIMIT_S, AgentStart
from poprun.reach.host_search import SearchQuestion
from poprun.supervise.host_search import HostSearch
from poprun.wire import codec, protocol


class Question(NamedTuple):
    """A question to an agent: its kind and value, and the type of the answer."""

    kind: int
    value: Any
    answer_type: Any


class Joined(NamedTuple):
    """A host whose agent gets ready for its instances, and the hosts of all."""

    link: RemoteHost
    connection: AgentConnection
    host_names: tuple[str, ...]


# Yields questions to the agent of a host, gets the answers, and returns the function
# that lets the host join.
Handshake = Generator[Question, Any, Callable[[], Joined]]


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
        warn: Says why a host cannot join.
    """

    def __init__(self, growth: Growth, warn: Callable[[str], None]) -> None:
        self._growth, self._warn = growth, warn
        self._search: HostSearch | None = None
        self._joining: list[_Joining] = []
        self._losses: Counter[str] = Counter()

    def note_loss(self, host: str) -> None:
        """Take in that a host was lost: another search asks for it, after a while."""
        self._losses[host] += 1
        self._end_search()

    def look(self) -> Iterator[Joined]:
        """Look for hosts, let them join, and yield those that are ready."""
        for joining in list(self._joining):
            if joined := joining.take():
                self._joining.remove(joining)
                self._end_search()
                yield joined
            elif joining.failure:
                self._warn(joining.failure)
                self._remove(joining)
                self.note_loss(joining.host.name)
        if self._search is None:
            if question := self._growth.question(self._losses):
                self._search = self._growth.search(question)
                self._search.begin()
        elif not self._joining and (found := self._search.take()):
            hosts = parse_hosts(",".join(found.hosts))
            new = [host for host in hosts if host.name in found.new_hosts]
            self._joining = [_Joining(self._growth, host) for host in new]

    def end(self) -> None:
        """Let no host join any more."""
        self._end_search()
        # Their agents end at the same time.
        for joining in self._joining:
            joining.hang_up()
        for joining in list(self._joining):
            self._remove(joining)

    def send_signal(self, number: int) -> None:
        """Stop or continue the search."""
        if self._search is not None:
            self._search.send_signal(number)

    def interests(self, now: float) -> Iterator[Interest]:
        for part in self._parts:
            yield from part.interests(now)

    def deadline(self, now: float) -> float:
        return min((part.deadline(now) for part in self._parts), default=inf)

    def tick(self, now: float) -> None:
        for part in self._parts:
            part.tick(now)

    @property
    def _parts(self) -> Sequence["HostSearch | _Joining"]:
        searches = () if self._search is None else (self._search,)
        return (*searches, *self._joining)

    def _end_search(self) -> None:
        if self._search is not None:
            self._search.end()
            self._search = None

    def _remove(self, joining: "_Joining") -> None:
        self._joining.remove(joining)
        joining.end()


class _Joining:
    """A host that is connected and asked."""

    def __init__(self, growth: Growth, host: HostSpec) -> None:
        self.host = host
        # A sentence, once it has failed.
        self.failure = ""
        # Lets it join, once all is answered.
        self._admit: Callable[[], Joined] | None = None
        self._growth = growth
        self._limit_s = ANSWER_LIMIT_S * timeout_factor()
        self._ends_by = time.monotonic() + self._limit_s
        self._handshake: Handshake | None = None
        self._question: Question | None = None
        self._start: AgentStart | None = None
        try:
            self._start = growth.connect(host)
            self._start.begin()
        except PoprunError as error:
            self.failure = str(error)

    def interests(self, now: float) -> Iterator[Interest]:
        connection = None if self._start is None else self._start.connection
        if self._is_open and connection is not None:
            yield Interest(connection.fileno(), READ, self._receive)

    def deadline(self, now: float) -> float:
        if not self._is_open or self._start is None:
            return 0.0
        is_retried = self._start.connection is None
        return self._start.again_at if is_retried else self._ends_by

    def tick(self, now: float) -> None:
        if not self._is_open or self._start is None:
            return
        try:
            if self._start.connection is None and now >= self._start.again_at:
                self._start.begin()
        except PoprunError as error:
            self.failure = str(error)
        if now >= self._ends_by and self._handshake is None:
            self._start.give_up(self._limit_s)
            self.failure = self._start.failure
        elif now >= self._ends_by:
            self.failure = (
                f"The host {self.host.name} cannot join: its agent does not answer "
                f"within {self._limit_s:.0f} s."
            )

    def take(self) -> Joined | None:
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

    def hang_up(self) -> None:
        if self._start is not None and self._start.connection is not None:
            self._start.connection.hang_up()

    def end(self) -> None:
        if self._start is not None:
            self._start.end()

    @property
    def _is_open(self) -> bool:
        return not self.failure and self._admit is None

    def _receive(self) -> None:
        start = self._start
        connection = None if start is None else start.connection
        if start is None or connection is None or not self._is_open:
            return
        if self._handshake is None:
            start.receive()
            self.failure = start.failure
            if connection.has_answered and not self.failure:
                self._handshake = self._growth.handshake(self.host, connection)
                self._go_on(connection, None)
            return
        received = connection.receive()
        if received is None:
            self.failure = (
                f"The host {self.host.name} cannot join: the connection to it has "
                "ended."
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
