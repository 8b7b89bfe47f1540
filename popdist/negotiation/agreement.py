"""The decisions on the calls that all members of a group have requested, in order.

Every member feeds the same messages of all members to its own agreement, so all members
come to the same decisions without a leader. Decisions depend on the messages alone: an
agreement knows no clock, no threads and no transport.
"""

import json
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from popdist.negotiation.call_requests import Kind, Request, find_mismatch

# All members forget what they know of repeated calls after so many different ones.
_MOST_TEMPLATES = 4096
_ENCODER = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Decision:
    """A call that all members have requested, to be carried out by all of them."""

    name: str
    # One for each member; None for a member that has joined.
    requests: tuple[Request | None, ...]
    # Why the call cannot be made; the same on all members.
    error: str | None = None
    # The member that was the last to join, by its name in errors.
    last: int = -1

    @property
    def request(self) -> Request:
        """The request of the first member that has one."""
        return next(request for request in self.requests if request is not None)


class Agreement:
    """The calls that some members have requested, and others have not."""

    def __init__(
        self,
        members: Sequence[int],
        *,
        program: str = "popdist",
        noun: str = "instance",
    ) -> None:
        """Begin without calls.

        Args:
            members: The numbers of the members in errors.
            program: The source of reports.
            noun: The word for a member in errors.
        """
        self.program = program
        self._members = tuple(members)
        self._noun = noun
        self._size = len(members)
        # By name, in the order in which the first member requested them, and then by
        # member, in its order. No queue is empty.
        self._pending: dict[str, dict[int, deque[Request]]] = {}
        # When each member has joined that has.
        self._joined: dict[int, int] = {}
        # How many calls without a name each member has made, by kind.
        self._unnamed: Counter[tuple[int, Kind]] = Counter()
        self._template_numbers: dict[Request, int] = {}
        self._templates: list[Request] = []
        # The decision if all members announce one known call, by their message.
        self._repeated: dict[bytes, Decision] = {}
        # Whether all members have announced the same, while nothing else was pending.
        self.is_unanimous = False
        # Whether no member requests more before a call is over, and none can be made.
        self.is_deadlocked = False

    def encode(self, requests: Sequence[Request], blocked: bool = False) -> bytes:
        """Return the message that announces these requests to all members.

        Args:
            blocked: Without requests, that none will come before a call is over.
        """
        if not requests:
            return _BLOCKED if blocked else b""
        entries: list[Any] = []
        for request in requests:
            template = request.template
            known: Any = self._template_numbers.get(template, template)
            entries.append([known, request.counts] if request.counts else known)
        return _ENCODER.encode(entries).encode()

    def feed(self, messages: Sequence[bytes]) -> list[Decision]:
        """Take the next message of each member, and return the new decisions."""
        text = messages[0]
        self.is_unanimous = not (self._pending or self._joined) and (
            messages.count(text) == self._size
        )
        # Members that repeat one call without a change come to the same decision.
        repeated = self._repeated.get(text) if self.is_unanimous else None
        if repeated is not None:
            return [repeated]
        for member, message in enumerate(messages):
            for entry in json.loads(message) if message else ():
                self._add(member, entry)
        decisions = self._decide()
        self.is_deadlocked = not decisions and set(messages) == {_BLOCKED}
        if len(self._templates) > _MOST_TEMPLATES:
            self._templates.clear()
            self._template_numbers.clear()
            self._repeated.clear()
        elif self.is_unanimous and len(decisions) == 1:
            request = decisions[0].request
            if request.name is not None and not request.counts:
                self._repeated[text] = decisions[0]
        return decisions

    def lacks(self, member: int) -> bool:
        """Return whether a call waits for this member."""
        return member not in self._joined and any(
            member not in requests for requests in self._pending.values()
        )

    def describe_stall(
        self, member: int, request: Request, name: str, seconds: float
    ) -> str:
        """Return for whom a call of this member has waited, as a sentence."""
        requested = self._pending.get(name, {}).keys() | self._joined.keys()
        missing = [
            str(number)
            for other, number in enumerate(self._members)
            if other not in requested
        ]
        return (
            f"{self._noun} {self._members[member]} has waited "
            f"{seconds:.0f} s in {request.title(name)} for {self._noun}s "
            f"{', '.join(missing)}, which make other calls."
        )

    def describe_deadlock(self, seconds: float) -> str:
        """Return which calls two members wait in, as a sentence; the same on all."""
        # The oldest call that each member waits in.
        oldest: dict[int, tuple[str, str]] = {}
        for name, queues in self._pending.items():
            for member, requests in queues.items():
                oldest.setdefault(member, (name, requests[0].title(name)))
        first, (name, title) = min(oldest.items())
        other = min(oldest.keys() - self._pending[name].keys())
        return (
            f"Named collectives were called in different orders: {self._noun} "
            f"{self._members[first]} is in {title}, but {self._noun} "
            f"{self._members[other]} waits in {oldest[other][1]}, and has for "
            f"{seconds:g} s, with all its threads that make such calls. Call them in "
            "one order, from threads, or with async_op=True."
        )

    def _add(self, member: int, entry: Any) -> None:
        """Add a request of a member, by its entry in the member's message."""
        counts: tuple[int, ...] = ()
        # A template has more entries.
        if isinstance(entry, list) and len(entry) == 2:
            entry, counts = entry[0], tuple(entry[1])
        if isinstance(entry, int):
            template = self._templates[entry]
        else:
            template = Request.decode(entry)
            if template not in self._template_numbers:
                self._template_numbers[template] = len(self._templates)
                self._templates.append(template)
        request = template._replace(counts=counts) if counts else template
        if request.kind is Kind.JOIN:
            (self._joined[member],) = counts
            return
        name = request.name
        if name is None:
            number = self._unnamed[member, request.kind]
            self._unnamed[member, request.kind] += 1
            name = unnamed(request.kind, number)
        queues = self._pending.setdefault(name, {})
        queues.setdefault(member, deque()).append(request)

    def _decide(self) -> list[Decision]:
        """Decide on all members' common requests, in the order of first requests."""
        decisions = []
        for name in list(self._pending):
            queues = self._pending[name]
            while queues and len(queues.keys() | self._joined.keys()) == self._size:
                decisions.append(self._decision(name, queues))
            if not queues:
                del self._pending[name]
        if len(self._joined) == self._size:
            join = Request(Kind.JOIN, JOIN)
            last = max(self._joined, key=lambda member: self._joined[member])
            requests = (join,) * self._size
            decisions.append(Decision(JOIN, requests, last=self._members[last]))
            self._joined = {}
        return decisions

    def _decision(self, name: str, queues: dict[int, deque[Request]]) -> Decision:
        """Take the next request of each member that has not joined."""
        requests: list[Request | None] = [None] * self._size
        for member in list(queues):
            requests[member] = queues[member].popleft()
            if not queues[member]:
                del queues[member]
        error = find_mismatch(name, tuple(requests), self._members)
        decision = Decision(name, tuple(requests), error)
        if decision.request.name is None:
            # A call without a name counts as their own for members that have joined.
            for member, request in enumerate(requests):
                if request is None:
                    self._unnamed[member, decision.request.kind] += 1
        return decision


JOIN = "join"
# The message of a member that requests nothing before a call is over, and announces so.
_BLOCKED = b"[]"


def unnamed(kind: Kind, number: int) -> str:
    """Return the name of a call that was given none."""
    return f"{kind.text}.noname.{number}"
