"""Popdist's named calls: operations on arrays that are matched by name in any order.

Small arrays travel with the requests for their calls, so that these take one step.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from popdist.engine.calls.rows import Array
from popdist.engine.group import Group
from popdist.engine.handle import Handle
from popdist.engine.spec.dtypes import code_of
from popdist.engine.spec.operations import number_of
from popdist.negotiation.agreement import Agreement, Decision
from popdist.negotiation.call_requests import UNNAMED, Kind, Request
from popdist.negotiation.negotiator import Call, Negotiator
from popdist.session import STATE

T = TypeVar("T")

# The bytes of the largest arrays that travel with requests.
_SMALL_BYTES = 64
# Ends the layout in what travels with a request.
_END_OF_LAYOUT = b":"


class ArrayOperation(NamedTuple, Generic[T]):
    """What a named call does with an array of each member."""

    # The same on all members that make the same call.
    label: str
    # This member's array, as it is when the call is requested.
    array: Array
    # Carry it out among the members, given the call's name.
    carry_out: Callable[[Group, str | None], T]
    # Carry it out here, given a group of this member alone and a row of each member.
    complete: Callable[[Group, Array], T]

    def payload(self) -> bytes:
        """Return what travels with the request: layout and data of a small array."""
        array = self.array
        if not 0 < array.nbytes <= _SMALL_BYTES:
            return b""
        layout = f"{self.label} {code_of(array.dtype)} {array.shape}"
        return layout.encode() + _END_OF_LAYOUT + array.tobytes()


class NamedCall(Call):
    """A call that is matched by its name, whatever it does."""

    def __init__(self, name: str | None, operation: ArrayOperation[Any]) -> None:
        # All members know the names in the engine's errors before the call begins.
        number_of(name)
        super().__init__(Request(Kind.ANY, UNNAMED if name is None else name))
        self.payload = operation.payload()
        self.name_in_engine = name
        self.operation = operation


class NamedCalls:
    """The named calls among some instances, of which this is one."""

    def __init__(self, participants: tuple[int, ...]) -> None:
        """Meet the other instances. All of them must make it, and it blocks."""
        settings = STATE.job.settings
        self._group = STATE.group("named", participants)
        # Adds rows as the members would do, to the bit.
        alone = STATE.group("sums", (STATE.job.place.rank,))
        self._alone = alone.view((len(participants),))
        self._negotiator = Negotiator(
            self._group,
            Agreement(participants),
            self._carry_out_all,
            timeout=settings.timeout,
            stall=settings.stall,
            deadlock=settings.stall,
        )

    def submit(
        self, name: str | None, operation: ArrayOperation[T], *, wait: bool
    ) -> Handle[T]:
        """Request a call, and return its handle.

        Args:
            wait: The caller waits for it at once.
        """
        return self._negotiator.submit(NamedCall(name, operation), wait=wait)

    def _carry_out_all(self, decided: Sequence[tuple[Decision, Call | None]]) -> None:
        for _, call in decided:
            # None joins, so each call is one of this member, too.
            assert isinstance(call, NamedCall)
            try:
                call.result = self._carry_out(call)
            except Exception as error:
                call.error = error

    def _carry_out(self, call: NamedCall) -> Any:
        operation = call.operation
        payloads = [payload.partition(_END_OF_LAYOUT) for payload in call.payloads]
        layouts = {layout for layout, _, _ in payloads}
        if len(layouts) != 1 or b"" in layouts:
            # Where the members' arrays differ, the engine says so.
            return operation.carry_out(self._group, call.name_in_engine)
        array = operation.array
        data = bytearray().join([row for _, _, row in payloads])
        rows = np.frombuffer(data, array.dtype).reshape(len(payloads), *array.shape)
        return operation.complete(self._alone, rows)


def named_calls_among(participants: tuple[int, ...]) -> NamedCalls:
    """Return the named calls among these instances.

    The first call for the same participants is collective: all of them must make it,
    and it blocks until they have.
    """
    return STATE.once(("named calls", participants), lambda: NamedCalls(participants))
