"""The operations to measure: their arrays, and their expected results.

The size of a task is the size of its larger array on one member: the array that
all_reduce reduces, the input of reduce_scatter, the result of all_gather.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from popdist.bench import inputs
from popdist.bench.inputs import Array

OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather")


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One operation on arrays of one size, with an array for each call of a pass.

    source: The elements with which each input is rewritten before each pass.
    inputs: The arrays that the member contributes.
    results: The arrays for results. For all_reduce they are the inputs themselves.
    """

    operation: str
    rank: int
    members: int
    length: int
    source: Array
    inputs: Sequence[Array]
    results: Sequence[Array]

    @property
    def dtype(self) -> str:
        """The name of the arrays' dtype."""
        return str(self.source.dtype.name)

    @property
    def nbytes(self) -> int:
        """The size of the larger array of a call."""
        return self.length * self.source.itemsize

    def on_arrays(self, arrays: Sequence[Array]) -> "Task":
        """Return the same task, in place on other arrays."""
        return replace(self, inputs=arrays, results=arrays)

    def reset(self) -> None:
        """Rewrite the first call's input, and clear its result."""
        self.results[0].fill(0)
        # After that: in place they are the same array.
        np.copyto(self.inputs[0], self.source)

    def is_right(self, result: Array) -> bool:
        """Return whether this is what the operation must give this member."""
        share = self.length // self.members
        if self.operation == "all_gather":
            return all(
                np.array_equal(array, inputs.source(share, self.dtype, q))
                for q, array in enumerate(result.reshape(self.members, share))
            )
        if self.operation == "all_reduce":
            return result.size == self.length and inputs.is_sum(result, self.members)
        return result.size == share and inputs.is_sum(
            result, self.members, first=self.rank * share
        )


def make_task(operation: str, nbytes: int, dtype: str, rank: int, members: int) -> Task:
    """Return the task of this size, rounded up to elements that members can share."""
    unit = 1 if operation == "all_reduce" else members
    length = -(-nbytes // (unit * np.dtype(dtype).itemsize)) * unit
    share = length // members
    count = inputs.rows_of_pass(length, dtype)
    input_length = share if operation == "all_gather" else length
    rows = inputs.rows(input_length, dtype, count)
    results = rows
    if operation != "all_reduce":
        result_length = share if operation == "reduce_scatter" else length
        results = inputs.rows(result_length, dtype, count)
    return Task(
        operation=operation,
        rank=rank,
        members=members,
        length=length,
        source=inputs.source(input_length, dtype, rank),
        inputs=rows,
        results=results,
    )


def read(results: Sequence[Array]) -> None:
    """Read every byte of some results once, as a program that uses them does."""
    for result in results:
        # The greatest byte is found as fast as memory delivers them.
        result.view(np.uint8).max()
