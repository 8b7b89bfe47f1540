"""New arrays in the arena that the instances of the job share.

all_reduce of such arrays, on all members, copies nothing in or out.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from popdist.engine.calls.rows import Array
from popdist.groups.instance_group import instance_group
from popdist.session import STATE


def empty(shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> Array:
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


def zeros(shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> Array:
    """Return a new array of zeros in the arena; see empty()."""
    array = empty(shape, dtype)
    array[...] = 0
    return array


def empty_like(x: ArrayLike) -> Array:
    """Return a new array in the arena with the shape and dtype of x; see empty()."""
    like = np.asarray(x)
    return empty(like.shape, like.dtype)
