"""Send and receive: calls between two members only."""

from typing import Any

import numpy as np

from popdist.engine.calls.array_rows import Array, readable, written
from popdist.engine.calls.array_transport import ArrayTransport
from popdist.engine.calls.collective import Action, collective
from popdist.engine.calls.membership import Membership, whole_number
from popdist.engine.spec.dtypes import code_of


class PointToPoint(Membership):
    """The calls of a group between two members."""

    @collective(named=False)
    def send(self, x: Any, dest: int) -> Action:
        """Send an array to one member, which must call recv().

        Only the two members take part, with arrays of the same shape and dtype. If the
        array is small, it returns at once; otherwise it waits for the receiver. Like
        any call of the group, it waits for earlier calls, also with async_op, so two
        members that both receive first wait for each other.
        """
        array = readable(np.asarray(x))
        code_of(array.dtype)
        peer = self.peer_of("dest", dest)
        return lambda carrier: carrier.send(array, peer)

    @collective(named=False)
    def recv(self, out: Array, source: int) -> Action:
        """Fill `out` with the array that one member sends, and return it.

        With async_op, later calls, including send(), wait until the array has arrived.
        """
        code_of(written(out).dtype)
        peer = self.peer_of("source", source)

        def action(carrier: ArrayTransport[Array]) -> Array:
            carrier.receive(out, peer)
            return out

        return action

    def peer_of(self, argument: str, member: int) -> int:
        if not self._flat:
            raise ValueError(
                "send and recv are between two instances, but the peers of this group "
                "are replicas. Use popdist.instance_group()."
            )
        member = whole_number(argument, member)
        if not 0 <= member < self.size or member == self.rank:
            raise ValueError(
                f"The {argument} is member {member}, but must be one of 0 to "
                f"{self.size - 1}, and not {self.rank}, which is this one."
            )
        return member
