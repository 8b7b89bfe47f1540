"""Where results are written: the caller's arrays (`out`), checked, or new ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from popdist.engine._core import address_of
from popdist.engine.calls.overlap import span_of
from popdist.engine.calls.rows import Array, written
from popdist.engine.spec.dtypes import DType, code_of
from popdist.engine.transport import Rows


class Destination:
    """Arrays that a transport writes as one row, from the first one to the last.

    It writes to them directly where they lie in one piece, and to scratch memory where
    they do not, or where it would overwrite what the call still reads.
    """

    def __init__(
        self,
        arrays: Sequence[Array],
        read: Sequence[Array] = (),
        *,
        keeps: Array | None = None,
        new: bool = False,
    ) -> None:
        """Choose where the transport writes.

        Args:
            arrays: What is written.
            read: What the call reads.
            keeps: That one of `arrays` which gets the elements that it has already, if
                the call reads it.
            new: Whether `arrays` are parts of a new array, in their order.
        """
        self._arrays = arrays
        self._scratch: Array | None = None
        if new:
            return
        overlapping = any(
            np.may_share_memory(array, other)
            for other in read
            for array in arrays
            if not (array is keeps and _is_same(array, other))
        )
        if overlapping or not _in_one_piece(arrays):
            nbytes = sum(array.nbytes for array in arrays)
            self._scratch = np.empty(nbytes, np.uint8)

    def rows(self, dtype: DType) -> Rows:
        """Return the one row that the transport writes, in elements of this dtype."""
        nbytes = sum([array.nbytes for array in self._arrays])
        begin = _first(self._arrays) if self._scratch is None else self._scratch
        shape = (nbytes // dtype.itemsize,)
        owner = self._arrays, self._scratch
        return Rows((address_of(begin),), shape, code_of(dtype), owner)

    def finish(self) -> None:
        """Copy what has gone to scratch memory to the arrays."""
        if self._scratch is None:
            return
        begin = 0
        for array in self._arrays:
            part = self._scratch[begin : begin + array.nbytes]
            # The next array begins where this one ends, wherever that is.
            if begin % array.itemsize:
                part = part.copy()
            array[...] = part.view(array.dtype).reshape(array.shape)
            begin += array.nbytes


def check_fits(out: Array, shape: Sequence[int], dtype: DType) -> None:
    """Raise ValueError if a result of this shape and dtype cannot be written to out."""
    if out.shape != tuple(shape) or out.dtype != dtype:
        raise ValueError(
            f"out has {out.dtype} of shape {out.shape}, but the result has {dtype} of "
            f"shape {tuple(shape)}. Give an array like the result, or no out."
        )


def check_apart(out: Sequence[Array]) -> None:
    """Raise ValueError if two arrays that get different results share memory."""
    spans = sorted(
        (*span_of(array), index) for index, array in enumerate(out) if array.size
    )
    for at, (_, end, one) in enumerate(spans):
        for begin, _, other in spans[at + 1 :]:
            if begin >= end:
                break
            if np.shares_memory(out[one], out[other]):
                first, second = sorted((one, other))
                raise ValueError(
                    f"Arrays {first} and {second} of out share memory, but each of "
                    "them gets another result. Give arrays that do not overlap."
                )


def out_arrays(out: Any, count: int) -> list[Array]:
    """Return the arrays, one for each replica of the group, that `out` stands for."""
    if isinstance(out, list | tuple):
        arrays = [written(one) for one in out]
    else:
        whole = written(out)
        arrays = [whole[i, ...] for i in range(len(whole))] if whole.ndim else []
    if len(arrays) != count:
        raise ValueError(
            f"out has {len(arrays)} entries, but the result has {count}: one for each "
            f"replica of the group. Give a list of {count} arrays, or an array with a "
            f"leading axis of {count}."
        )
    check_apart(arrays)
    return arrays


def _first(arrays: Sequence[Array]) -> Array:
    # Memory of an array without elements may lie anywhere.
    for array in arrays:
        if array.size:
            return array
    return arrays[0]


def _in_one_piece(arrays: Sequence[Array]) -> bool:
    """Return whether arrays lie one behind the other, without gaps."""
    end = None
    for array in arrays:
        if not (array.flags.c_contiguous and array.flags.aligned):
            return False
        if not array.size:
            continue
        begin = address_of(array)
        if end is not None and begin != end:
            return False
        end = begin + array.nbytes
    return True


def _is_same(one: Array, other: Array) -> bool:
    return (address_of(one), one.nbytes) == (address_of(other), other.nbytes)
