"""A call of a group as one record, and the rows in the tables of adapters."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from popdist.engine.rows import Pair, Rows
from popdist.engine.spec.dtypes import item_bytes_of
from popdist.engine.spec.operations import DIRECT, NO_PRELUDE, Described, Operation

REDUCING = (Operation.ALL_REDUCE, Operation.REDUCE, Operation.REDUCE_SCATTER)

# Operations in which all members' arrays must have the same shape.
_OF_ONE_SHAPE = frozenset(
    (
        *REDUCING,
        Operation.SEND,
        Operation.RECEIVE,
        Operation.BROADCAST,
        Operation.ALL_TO_ALL,
    )
)


# The fields of an EngineCall: a plain tuple takes less time to make.
CallFields = tuple[
    *tuple[Operation, Sequence[Pair], int, int, int],
    *tuple[int, int, Operation, Sequence[int]],
]


class EngineCall(NamedTuple):
    """A call of one member. The core reads its fields in this order.

    Attributes:
        arrays: For each array, the rows to read and the rows to write. A message has
            one row, which stands for both.
        algorithm: The algorithm of an all-reduce; -1 to choose by size.
        root: The root of a rooted operation, or the other member of a message; -1 for
            none.
        name: The number of the call's name, 0 for none.
        prelude_to: The operation on the arrays that this call describes.
        lengths: The bytes of each member's part, in an exchange.
    """

    operation: Operation
    arrays: Sequence[Pair] = ()
    dtype: int = 0
    reduction: int = 0
    algorithm: int = DIRECT
    root: int = -1
    name: int = 0
    prelude_to: Operation = NO_PRELUDE
    lengths: Sequence[int] = ()

    def agreed_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of arrays, where members must agree on them."""
        # A prelude's rows are headers, which all have one shape.
        if self.operation in _OF_ONE_SHAPE and self.prelude_to == NO_PRELUDE:
            return tuple([source.shape for source, _ in self.arrays])
        return ()

    def description(self) -> Described:
        """Return the description of the call that members compare and show."""
        if self.lengths and self.operation is not Operation.BROADCAST:
            count = sum(self.lengths) // item_bytes_of(self.dtype)
        else:
            count = sum(source.count for source, _ in self.arrays)
        reduces = self.operation in REDUCING
        how = (self.reduction, max(self.algorithm, 0)) if reduces else (0, 0)
        about = self.root, count, self.name, self.prelude_to
        return (self.operation, self.dtype, *how, *about)


@lru_cache(maxsize=1024)
def barrier_call(name: int) -> EngineCall:
    """Return the call of a barrier."""
    return EngineCall(Operation.BARRIER, root=0, name=name)


def pairs_in(arrays: bytes, dtype: int, replicas: int) -> list[Pair]:
    """Return the arrays in a table: see Group.all_reduce_table."""
    numbers: list[int] = np.frombuffer(arrays, np.uint64).tolist()
    pairs = []
    begin = 0
    while begin < len(numbers):
        rows = begin + 1 + numbers[begin]
        shape = tuple(numbers[begin + 1 : rows])
        *addresses, result = numbers[rows : rows + replicas + 1]
        source = Rows(tuple(addresses), shape, dtype)
        pairs.append((source, Rows((result,) * replicas, shape, dtype)))
        begin = rows + replicas + 1
    return pairs
