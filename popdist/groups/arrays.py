"""New arrays in the arena that the instances of the job share.

all_reduce of such arrays, on all members, copies nothing in or out.
"""

from collections.abc import Sequence
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

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
    several hosts, and where the machine does not let memory be shared so, the array is
    an ordinary one.
    """
    place = STATE.job.place
    if place.local_size < place.size:
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
