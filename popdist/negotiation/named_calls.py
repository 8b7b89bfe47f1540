"""Popdist's named calls: operations on arrays that are matched by name in any order.

Mismatched calls are detected before they are made, so that further calls can follow.
Small arrays travel with the requests for their calls, so that these take one step.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

import numpy as np

from popdist.engine.calls.array_rows import Array
from popdist.engine.group import Group
from popdist.engine.spec.dtypes import code_of, name_of
from popdist.engine.spec.operations import number_of
from popdist.negotiation.agreement import Agreement, Decision
from popdist.negotiation.call_requests import UNNAMED, Kind, Layout, Request
from popdist.negotiation.calls import Call
from popdist.negotiation.negotiator import Negotiator
from popdist.session import STATE

T = TypeVar("T")

# The bytes of the largest arrays that travel with requests.
_SMALL_BYTES = 64


class NamedCall(Call, Generic[T]):
    """An operation on an array of each member, which is matched by its name."""

    def __init__(
        self,
        name: str | None,
        label: str,
        carry_out: Callable[[Group, str | None], T],
        array: Array | None = None,
        complete: Callable[[Group, Array], T] | None = None,
    ) -> None:
        """Make a call that is not requested yet.

        Args:
            label: The name of the operation; the same on all members.
            carry_out: Carries the call out among the members, given its name.
            array: This member's array, if it is the only one and has the same dtype and
                shape on all members; otherwise None.
            complete: Carries the call out here, given a group of this member alone, and
                a row of each member; None where only `carry_out` can.
        """
        # All members know the names in the engine's errors before the call begins.
        number_of(name)
        layouts: tuple[Layout, ...] = ()
        if array is not None:
            layouts = ((name_of(code_of(array.dtype)), array.shape),)
        key = UNNAMED if name is None else name
        super().__init__(Request(Kind.ANY, key, layouts, label=label))
        self._name_in_engine = name
        self._array, self._carry_out, self._complete = array, carry_out, complete
        if array is not None and complete and array.nbytes <= _SMALL_BYTES:
            self.payload = array.tobytes()

    def make(self, group: Group, alone: Group) -> T:
        """Make the call, in its turn.

        Args:
            group: The members' group.
            alone: A group of this member alone, with as many rows.
        """
        data = bytearray().join(self.payloads)
        if self._array is None or self._complete is None or not data:
            return self._carry_out(group, self._name_in_engine)
        rows = np.frombuffer(data, self._array.dtype)
        return self._complete(alone, rows.reshape(group.size, *self._array.shape))


def named_calls_among(participants: tuple[int, ...]) -> Negotiator:
    """Return the negotiator of the named calls among these instances.

    The first call for the same participants is collective: all of them must make it,
    and it blocks until they have.
    """
    return STATE.once(("named calls", participants), lambda: _negotiator(participants))


def _negotiator(participants: tuple[int, ...]) -> Negotiator:
    settings = STATE.settings
    group = STATE.group("named", participants)
    # Adds rows as the members would do, to the bit.
    alone = STATE.group("sums", (STATE.job.place.rank,)).view((len(participants),))
    return Negotiator(
        group,
        Agreement(participants),
        partial(_carry_out, group, alone),
        timeout=settings.timeout,
        stall=settings.stall,
        deadlock=settings.stall,
    )


def _carry_out(
    group: Group, alone: Group, decided: Sequence[tuple[Decision, Call | None]]
) -> None:
    for _, call in decided:
        # None joins, so each call is one of this member, too.
        assert isinstance(call, NamedCall)
        try:
            call.result = call.make(group, alone)
        except Exception as error:
            call.error = error
