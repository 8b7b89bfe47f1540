"""Which calls all members of a process set have requested, and in which order.

Every member feeds the same messages of all members to an agreement of its own, so all
of them come to the same decisions without a leader. It is a value of those messages
alone: it knows no clock, no threads and no transport.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .call_requests import Kind, Request, find_mismatch, template_of

# All members forget what they know of repeated calls after so many different ones.
_MOST_TEMPLATES = 4096


@dataclass(frozen=True, slots=True)
class Decision:
    """A call that all members have requested, to be carried out by all of them."""

    name: str
    # One for each member; None for a member that has joined.
    requests: tuple[Request | None, ...]
    # Why the call cannot be made; the same on all members.
    error: str | None = None
    # Of a join: the rank that came last.
    last: int = -1

    @property
    def request(self) -> Request:
        """The request of the first member that has one."""
        return next(one for one in self.requests if one is not None)


class Agreement:
    """The calls that some members have requested, and others have not."""

    def __init__(self, ranks: Sequence[int]) -> None:
        """Begin without calls.

        Args:
            ranks: What the members are called in errors.
        """
        self.ranks = tuple(ranks)
        self._size = len(ranks)
        # By name, in the order in which the first member requested them.
        self._pending: dict[str, dict[int, Request]] = {}
        # When each member has joined that has.
        self._joined: dict[int, int] = {}
        # How many calls without a name each member has made, by kind.
        self._unnamed: Counter[tuple[int, Kind]] = Counter()
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._templates: list[tuple[Any, ...]] = []

    def encode(self, requests: Sequence[Request]) -> bytes:
        """Return the message that announces these requests to all members."""
        entries: list[Any] = []
        for request in requests:
            template = request.template
            known: Any = self._numbers.get(template, template)
            entries.append([known, request.counts] if request.counts else known)
        return json.dumps(entries, separators=(",", ":")).encode() if entries else b""

    def feed(self, messages: Sequence[bytes]) -> list[Decision]:
        """Take the next message of each member, and return what can be carried out."""
        for member, message in enumerate(messages):
            for entry in json.loads(message) if message else ():
                self._take(member, entry)
        if len(self._templates) > _MOST_TEMPLATES:
            self._templates.clear()
            self._numbers.clear()
        return self._decide()

    def lacks(self, member: int) -> bool:
        """Return whether a call waits for this member."""
        return member not in self._joined and any(
            member not in requests for requests in self._pending.values()
        )

    def missing(self, name: str) -> list[int]:
        """Return the ranks that have not requested this call, and have not joined."""
        requests = self._pending.get(name, {})
        return [
            rank
            for member, rank in enumerate(self.ranks)
            if member not in requests and member not in self._joined
        ]

    def _take(self, member: int, entry: Any) -> None:
        counts: tuple[int, ...] = ()
        # A template has more entries.
        if isinstance(entry, list) and len(entry) == 2:
            entry, counts = entry[0], tuple(entry[1])
        if isinstance(entry, int):
            template = self._templates[entry]
        else:
            template = template_of(entry)
            if template not in self._numbers:
                self._numbers[template] = len(self._templates)
                self._templates.append(template)
        request = Request.from_template(template, counts)
        if request.kind is Kind.JOIN:
            (self._joined[member],) = counts
            return
        name = request.name
        if name is None:
            number = self._unnamed[member, request.kind]
            self._unnamed[member, request.kind] += 1
            name = unnamed(request.kind, number)
        self._pending.setdefault(name, {})[member] = request

    def _decide(self) -> list[Decision]:
        decided = []
        waiting = {}
        for name, requests in self._pending.items():
            if len(requests.keys() | self._joined.keys()) < self._size:
                waiting[name] = requests
                continue
            each = tuple([requests.get(member) for member in range(self._size)])
            error = find_mismatch(name, each, self.ranks)
            decision = Decision(name, each, error)
            if len(requests) < self._size and decision.request.name is None:
                self._count_for_joined(decision)
            decided.append(decision)
        self._pending = waiting
        if len(self._joined) == self._size:
            join = Request(Kind.JOIN, JOIN)
            last = max(self._joined, key=lambda member: self._joined[member])
            decided.append(Decision(JOIN, (join,) * self._size, last=self.ranks[last]))
            self._joined = {}
        return decided

    def _count_for_joined(self, decision: Decision) -> None:
        """Count a call without a name for members that have joined, as their own."""
        for member, request in enumerate(decision.requests):
            if request is None:
                self._unnamed[member, decision.request.kind] += 1


JOIN = "join"


def unnamed(kind: Kind, number: int) -> str:
    """Return the name of a call that was given none."""
    return f"{kind.text}.noname.{number}"
