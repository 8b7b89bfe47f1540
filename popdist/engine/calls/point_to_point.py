"""Send and receive: calls between two members only."""

from typing import Any

import numpy as np

from popdist.engine.calls.array_rows import NUMPY, Array, readable, rows_of, written
from popdist.engine.calls.collective import Action, collective
from popdist.engine.calls.membership import Membership, whole_number


class PointToPoint(Membership):
    """The part of a group in which two members write to each other."""

    @collective(named=False)
    def send(self, x: Any, dest: int) -> Action:
        """Send an array to one member, which must call recv().

        Only the two members take part, with arrays of the same shape and dtype. If the
        array is small, it returns at once; otherwise it waits for the receiver. Like
        any call of the group, it waits for earlier calls, also with async_op, so two
        members that both receive first wait for each other.
        """
        row = rows_of([readable(np.asarray(x))])
        peer = self.peer_of("dest", dest)
        return lambda _: self.transport.send(row, peer)

    @collective(named=False)
    def recv(self, out: Array, source: int) -> Action:
        """Fill `out` with the array that one member sends, and return it.

        With async_op, later calls, including send(), wait until the array has arrived.
        """
        array = readable(written(out))
        peer = self.peer_of("source", source)
        row = rows_of([array])

        def action(_: int) -> Array:
            self.transport.receive(row, peer)
            if array is not out:
                NUMPY.copy(array, out)
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
