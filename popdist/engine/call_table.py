"""A call of a group as one record, and the rows in the tables of adapters."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from popdist.engine.rows import Pair, Rows
from popdist.engine.spec.operations import DIRECT, NO_PRELUDE, Operation

# The fields of an EngineCall: a plain tuple takes less time to make.
CallFields = tuple[
    *tuple[Operation, Sequence[Pair], int, int, int],
    *tuple[int, int, Operation, Sequence[int]],
]


class EngineCall(NamedTuple):
    """A call of one member. The core reads its fields in this order.

    Attributes:
        arrays: For each array, the rows to read and the rows to write. A message has
            one row, which stands for both. An all-reduce may have a table of the arrays
            instead, as bytes: see Group.all_reduce_table.
        algorithm: The algorithm of an all-reduce; -1 to choose by size.
        root: The root of a rooted operation, or the other member of a message; -1 for
            none.
        name: The number of the call's name, 0 for none.
        prelude_to: The operation on the arrays that this call describes.
        lengths: The bytes of each member's share, in an exchange.
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
