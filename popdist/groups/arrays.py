"""Arrays for the calls of groups.

New arrays in the arena that the instances of the job share, and arrays with marked
rows: each row is a local replica's array.
"""

from collections.abc import Sequence
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from popdist.engine.calls.array_rows import ReplicaRows
from popdist.groups.instance_group import instance_group
from popdist.session import STATE

# Any stands for a dtype that is known only when running.
S = TypeVar("S", bound=np.generic)


@overload
def empty(shape: int | Sequence[int]) -> NDArray[np.float32]: ...
@overload
def empty(shape: int | Sequence[int], dtype: type[S] | np.dtype[S]) -> NDArray[S]: ...
@overload
def empty(shape: int | Sequence[int], dtype: DTypeLike) -> NDArray[Any]: ...
def empty(shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Return a new array in the arena of the job's group, with arbitrary elements.

    The group is the one that instance_group() and replica_group() return here. If this
    process has not joined it, the call is collective: all instances must make it. On
    several hosts, and on machines that do not allow this kind of shared memory, it
    returns an ordinary array.
    """
    if not STATE.job.place.on_one_host:
        return np.empty(shape, dtype)
    return instance_group().empty(shape, dtype)


@overload
def zeros(shape: int | Sequence[int]) -> NDArray[np.float32]: ...
@overload
def zeros(shape: int | Sequence[int], dtype: type[S] | np.dtype[S]) -> NDArray[S]: ...
@overload
def zeros(shape: int | Sequence[int], dtype: DTypeLike) -> NDArray[Any]: ...
def zeros(shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Return a new array of zeros in the arena; see empty()."""
    array: NDArray[Any] = empty(shape, dtype)
    array[...] = 0
    return array


@overload
def empty_like(x: NDArray[S]) -> NDArray[S]: ...
@overload
def empty_like(x: ArrayLike) -> NDArray[Any]: ...
def empty_like(x: ArrayLike) -> NDArray[Any]:
    """Return a new array in the arena with the shape and dtype of x; see empty()."""
    like = np.asarray(x)
    return empty(like.shape, like.dtype)


def rows(x: NDArray[S]) -> NDArray[S]:
    """Return x, marked as an array with a row for each local replica.

    Pass it to the calls of replica_group(): row i, along the leading axis, is the array
    of this instance's replica i. It shares the memory of x, so it may also be an `out`.
    Results of arithmetic and indexing are ordinary arrays; copies and other views are
    marked too.

    Raises:
        TypeError: x is not an array.
        ValueError: x has no axis.
    """
    if not isinstance(x, np.ndarray):
        raise TypeError(
            f"popdist.rows() got {type(x).__name__}, but takes a numpy array. Give "
            "np.asarray(x), or a list of arrays to the group's call, without rows()."
        )
    if not x.ndim:
        raise ValueError(
            "popdist.rows() got an array without an axis, but needs a leading axis "
            "for the local replicas. Give an array with one element for each."
        )
    return x.view(ReplicaRows)
