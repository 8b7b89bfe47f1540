"""A call of a group as one record, and as the table that the C core reads.

core/python/call_table.h has the layout of the table, which is known here by the names
of its fields.
"""

from array import array
from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

import numpy as np

from popdist.engine import _core
from popdist.engine.rows import Pair, Rows
from popdist.engine.spec.dtypes import item_bytes_of
from popdist.engine.spec.operations import DIRECT, NO_PRELUDE, Described, Operation

REDUCING = (Operation.ALL_REDUCE, Operation.REDUCE, Operation.REDUCE_SCATTER)
MESSAGES = (Operation.SEND, Operation.RECEIVE)

# Operations in which all members' arrays must have the same shape.
_OF_ONE_SHAPE = frozenset(
    (*REDUCING, *MESSAGES, Operation.BROADCAST, Operation.ALL_TO_ALL)
)

_HEAD = Struct("=" + _core.CALL_FORMAT)


class EngineCall(NamedTuple):
    """A call of one member.

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

    def table(self) -> bytes:
        """Return the call as the core reads it."""
        # One by one: attributes of a tuple would take longer than the rest.
        operation, arrays, dtype, reduction, how, root, name, prelude, lengths = self
        numbers = [*lengths]
        sources = targets = 0
        is_of_one_shape = operation in _OF_ONE_SHAPE and prelude == NO_PRELUDE
        for source, target in arrays:
            read, written = source.addresses, target.addresses
            shape = source.shape if is_of_one_shape else ()
            numbers += (len(shape), *shape, *read, *written)
            sources, targets = len(read), len(written)
        about = dtype, reduction, how, root, name, prelude, len(lengths)
        head = table_head(operation, *about, sources, targets)
        return head + array("Q", numbers).tobytes() if numbers else head


@lru_cache(maxsize=1024)
def table_head(
    operation: int,
    dtype: int,
    reduction: int,
    algorithm: int,
    root: int = -1,
    name: int = 0,
    prelude_to: int = NO_PRELUDE,
    num_lengths: int = 0,
    num_sources: int = 0,
    num_targets: int = 0,
) -> bytes:
    """Return the head of a table; most calls of a program have had it before."""
    fields = locals()
    return _HEAD.pack(*[fields[field] for field in _core.CALL_FIELDS])


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
