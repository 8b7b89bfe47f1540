"""Popdist's named calls: operations on arrays that are matched by name in any order.

Small arrays travel with the requests for their calls, so that these take one step.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np

from popdist.engine.calls.rows import Array
from popdist.engine.group import Group
from popdist.engine.handle import Handle
from popdist.engine.spec.dtypes import code_of
from popdist.engine.spec.operations import number_of
from popdist.negotiation.agreement import Agreement, Decision
from popdist.negotiation.call_requests import UNNAMED, Kind, Request
from popdist.negotiation.calls import Call
from popdist.negotiation.negotiator import Negotiator
from popdist.negotiation.stall_watch import StallWatch
from popdist.session import STATE

T = TypeVar("T")

# The bytes of the largest arrays that travel with requests.
_SMALL_BYTES = 64
# Ends the layout in what travels with a request.
_END_OF_LAYOUT = b":"


class NamedCall(Call, Generic[T]):
    """An operation on an array of each member, which is matched by its name."""

    def __init__(
        self,
        name: str | None,
        label: str,
        array: Array,
        carry_out: Callable[[Group, str | None], T],
        complete: Callable[[Group, Array], T],
    ) -> None:
        """Make a call that is not requested yet.

        Args:
            label: What it does; the same on all members that make the same call.
            array: This member's.
            carry_out: Carries it out among the members, given its name.
            complete: Carries it out here, given a group of this member alone, and a
                row of each member.
        """
        # All members know the names in the engine's errors before the call begins.
        number_of(name)
        super().__init__(Request(Kind.ANY, UNNAMED if name is None else name))
        self._name_in_engine = name
        self._array, self._carry_out, self._complete = array, carry_out, complete
        if 0 < array.nbytes <= _SMALL_BYTES:
            layout = f"{label} {code_of(array.dtype)} {array.shape}"
            self.payload = layout.encode() + _END_OF_LAYOUT + array.tobytes()

    def make(self, group: Group, alone: Group) -> T:
        """Make the call, whose turn it is.

        Args:
            group: That of the members.
            alone: One of this member alone, with as many rows.
        """
        payloads = [payload.partition(_END_OF_LAYOUT) for payload in self.payloads]
        layouts = {layout for layout, _, _ in payloads}
        if len(layouts) != 1 or b"" in layouts:
            # Where the members' arrays differ, the engine says so.
            return self._carry_out(group, self._name_in_engine)
        data = bytearray().join([row for _, _, row in payloads])
        rows = np.frombuffer(data, self._array.dtype)
        return self._complete(alone, rows.reshape(len(payloads), *self._array.shape))


class NamedCalls:
    """The named calls among some instances, of which this is one."""

    def __init__(self, participants: tuple[int, ...]) -> None:
        """Join the group of the other instances; blocks until all of them do."""
        settings = STATE.settings
        self._group = STATE.group("named", participants)
        # Adds rows as the members would do, to the bit.
        alone = STATE.group("sums", (STATE.job.place.rank,))
        self._alone = alone.view((len(participants),))
        agreement = Agreement(participants)
        watch = StallWatch(
            agreement,
            self._group.rank,
            timeout=settings.timeout,
            stall=settings.stall,
            deadlock=settings.stall,
        )
        self._negotiator = Negotiator(self._group, agreement, self._carry_out, watch)

    def submit(self, call: NamedCall[T], *, wait: bool) -> Handle[T]:
        """Request a call, and return its handle.

        Args:
            wait: The caller waits for it at once.
        """
        return self._negotiator.submit(call, wait=wait)

    def _carry_out(self, decided: Sequence[tuple[Decision, Call | None]]) -> None:
        for _, call in decided:
            # None joins, so each call is one of this member, too.
            assert isinstance(call, NamedCall)
            try:
                call.result = call.make(self._group, self._alone)
            except Exception as error:
                call.error = error


def named_calls_among(participants: tuple[int, ...]) -> NamedCalls:
    """Return the named calls among these instances.

    The first call for the same participants is collective: all of them must make it,
    and it blocks until they have.
    """
    return STATE.once(("named calls", participants), lambda: NamedCalls(participants))
