"""A call of this member, and the functions that carry it out and observe it."""

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Protocol

from popdist.engine.handle import Handle
from popdist.engine.spec.operations import Described
from popdist.negotiation.agreement import Decision
from popdist.negotiation.call_requests import Kind, Request


class Call:
    """A call of this member, from its request to its result."""

    # Set when the call is requested; the program waits for it.
    handle: Handle[Any]

    def __init__(self, request: Request) -> None:
        self.request = request
        # The name that matches the call; the negotiator fills it in for unnamed calls.
        self.name = request.name or ""
        self.begun = monotonic()
        # Bytes for the other members, and the bytes of all. They are exchanged if all
        # members request this call in one round, and no other one.
        self.payload = b""
        self.payloads: Sequence[bytes] = ()
        # The function that carries the call out sets one of them. Any: calls have
        # results of all types.
        self.result: Any = None
        self.error: Exception | None = None

    def outcome(self) -> Any:
        """Return the result of the call, or raise its error."""
        if self.error is not None:
            raise self.error
        return self.result


# Carries out the decisions of a round, in their order, with this member's calls.
CarryOut = Callable[[Sequence[tuple[Decision, Call | None]]], None]


class Observer(Protocol):
    """A listener for the progress of calls: a timeline."""

    def requested(self, name: str, kind: Kind) -> None: ...
    def began(self, name: str, kind: Kind) -> None: ...
    def ended(self, name: str, kind: Kind) -> None: ...
    def cycled(self) -> None: ...
    def carried_out(
        self, call: Described, began_ns: int, ended_ns: int, succeeded: bool
    ) -> None: ...
