"""A call of a group as one record, and as the table that the C core reads.

core/python/call_table.h has the layout of the table: fields in the order of CALL_FIELDS
and in the format CALL_FORMAT, and then numbers.
"""

from collections.abc import Callable, Sequence
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
        return table_of(*self)


def table_of(
    operation: Operation,
    arrays: Sequence[Pair],
    dtype: int,
    reduction: int,
    algorithm: int,
    root: int,
    name: int,
    prelude_to: Operation,
    lengths: Sequence[int],
    /,
) -> bytes:
    """Return the table of a call that has these fields of an EngineCall.

    Every call of a program passes here, and an EngineCall takes as long to make.
    """
    has_shapes = operation in _OF_ONE_SHAPE and prelude_to == NO_PRELUDE
    numbers = [*lengths]
    read: Sequence[int] = ()
    written: Sequence[int] = ()
    for source, target in arrays:
        read, written = source.addresses, target.addresses
        # One by one: a tuple of all of them would take twice as long.
        shape = source.shape if has_shapes else ()
        numbers.append(len(shape))
        numbers += shape
        numbers += read
        numbers += written
    about = operation, dtype, reduction, algorithm, root, prelude_to, name
    rows = len(lengths), len(read), len(written)
    return _packing(len(numbers))(*about, *rows, *numbers)


def head_of_reduction(dtype: int, reduction: int, algorithm: int, rows: int) -> bytes:
    """Return the head of a table of an all-reduce, whose rows share each result."""
    about = Operation.ALL_REDUCE, dtype, reduction, algorithm, -1, NO_PRELUDE, 0
    return _packing(0)(*about, 0, rows, 1)


@lru_cache(maxsize=256)
def _packing(count: int) -> Callable[..., bytes]:
    """Return what packs the fields of a head, and so many numbers behind it."""
    return Struct(f"{_core.CALL_FORMAT}{count}Q").pack


@lru_cache(maxsize=1024)
def barrier_call(name: int) -> EngineCall:
    """Return the call of a barrier."""
    return EngineCall(Operation.BARRIER, root=0, name=name)


@lru_cache(maxsize=1024)
def barrier_table(name: int) -> bytes:
    """Return the table of a barrier."""
    return barrier_call(name).table()


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
