"""PopDist's collectives between instances, matched by the names of tensors.

All instances of a communicator must make the same calls, one after another or from
several threads. Calls of one name are matched in order, calls of different names in any
order. A thread that waits in a call cannot make another one, so a program with one
thread must make its calls in the same order everywhere, or use async_op=True. Calls
without a name are matched with each other.

The first call connects to the other instances, unless popdist.init() has done so. A
call returns when this instance has its result. It raises PeerLostError if an instance
has died, MismatchError if the calls do not match, and other PopdistErrors. If the
operations, dtypes or shapes of one call differ, nothing is done, and you can make
further calls. After any other error the communicator is unusable; let the error end the
program.

Sums have the same bits on every instance and in every run. With async_op=True the calls
return a handle at once; do not use the arrays until its wait() returns.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from popdist.communicators import DEFAULT, participants
from popdist.engine.group import Group
from popdist.engine.handle import Handle
from popdist.negotiation.named_calls import NamedCall, named_calls_among
from popdist.session import STATE

# Any, because arrays of every dtype that the engine knows are taken.
Array = np.ndarray[Any, np.dtype[Any]]
A = TypeVar("A", bound=Array)
S = TypeVar("S", bound=np.generic)
T = TypeVar("T")

__all__ = ["allGather", "allReduceSum", "barrier", "broadcast"]


@overload
def allReduceSum(
    data: A,
    name: str | None = None,
    communicator: str | None = None,
    *,
    async_op: Literal[False] = False,
) -> A: ...
@overload
def allReduceSum(
    data: A,
    name: str | None = None,
    communicator: str | None = None,
    *,
    async_op: Literal[True],
) -> Handle[A]: ...
def allReduceSum(
    data: A,
    name: str | None = None,
    communicator: str | None = None,
    *,
    async_op: bool = False,
) -> A | Handle[A]:
    """Replace an array, in place, by its sum over the instances, and return it.

    Args:
        data: An array of the same dtype and shape on all instances.
        name: The tensor's name; None to match the call by order alone.
        communicator: The communicator of the instances; None for the default one.
        async_op: Return a handle at once; its wait() returns the array.
    """
    _check_writable("data", data)

    def add(alone: Group, rows: Array) -> A:
        data[...] = alone.all_reduce(rows, out=rows)[0]
        return data

    def reduce(group: Group, name: str | None) -> A:
        return group.all_reduce(data, out=data, name=name)

    return _make(name, communicator, async_op, "all_reduce", data, reduce, add)


@overload
def broadcast(
    data: A,
    root_rank: int,
    name: str | None = None,
    communicator: str | None = None,
    *,
    async_op: Literal[False] = False,
) -> A: ...
@overload
def broadcast(
    data: A,
    root_rank: int,
    name: str | None = None,
    communicator: str | None = None,
    *,
    async_op: Literal[True],
) -> Handle[A]: ...
def broadcast(
    data: A,
    root_rank: int,
    name: str | None = None,
    communicator: str | None = None,
    *,
    async_op: bool = False,
) -> A | Handle[A]:
    """Replace an array in place by the array of one instance, and return it.

    Args:
        data: An array of the same dtype and shape on all instances.
        root_rank: The index of that instance in the job.
        name: The tensor's name; None to match the call by order alone.
        communicator: The communicator of the instances; None for the default one.
        async_op: Return a handle at once; its wait() returns the array.
    """
    instances = participants(communicator)
    if root_rank not in instances:
        raise ValueError(
            f"The root is instance {root_rank}, but the communicator "
            f"{communicator or DEFAULT!r} is among the instances "
            f"{', '.join(map(str, instances))}. Choose one of those."
        )
    root = instances.index(root_rank)
    _check_writable("data", data)

    def copy(_: Group, rows: Array) -> A:
        data[...] = rows[root]
        return data

    def share(group: Group, name: str | None) -> A:
        return group.broadcast(data, root, out=data, name=name)

    label = f"broadcast from instance {root_rank}"
    return _make(name, communicator, async_op, label, data, share, copy)


@overload
def allGather(
    data: NDArray[S] | None,
    dst: NDArray[S] | None = None,
    name: str | None = None,
    communicator: str | None = None,
    *,
    inplace: bool = False,
    async_op: Literal[False] = False,
) -> NDArray[S]: ...
@overload
def allGather(
    data: NDArray[S] | None,
    dst: NDArray[S] | None = None,
    name: str | None = None,
    communicator: str | None = None,
    *,
    inplace: bool = False,
    async_op: Literal[True],
) -> Handle[NDArray[S]]: ...
def allGather(
    data: Array | None,
    dst: Array | None = None,
    name: str | None = None,
    communicator: str | None = None,
    *,
    inplace: bool = False,
    async_op: bool = False,
) -> Array | Handle[Array]:
    """Gather the arrays of all instances, in their order, and return them as one.

    Args:
        data: An array of the same dtype and shape on all instances.
        dst: The array for the result: its leading axis has a row of data's shape for
            each instance. None for a new array.
        name: The tensor's name; None to match the call by order alone.
        communicator: The communicator of the instances; None for the default one.
        inplace: data is None, and this instance's row is already in dst.
        async_op: Return a handle at once; its wait() returns dst.
    """
    instances = participants(communicator)
    own = _own_row(data, dst, inplace, instances)

    def gather(group: Group, name: str | None) -> Array:
        return _fill(dst, group.all_gather(own, name=name))

    def fill(_: Group, rows: Array) -> Array:
        return _fill(dst, list(rows))

    return _make(name, communicator, async_op, "all_gather", own, gather, fill)


def barrier(name: str | None = None, communicator: str | None = None) -> None:
    """Return when all instances of the communicator have called this."""
    allReduceSum(np.zeros(1, np.uint8), name, communicator)


def _make(
    name: str | None,
    communicator: str | None,
    async_op: bool,
    label: str,
    array: Array,
    carry_out: Callable[[Group, str | None], T],
    complete: Callable[[Group, Array], T],
) -> T | Handle[T]:
    """Make a call, or begin it; NamedCall documents the last arguments."""
    key = name
    # Two communicators may be among the same instances, and each has its own tensors.
    if name is not None and communicator not in (None, DEFAULT):
        key = f"{communicator}: {name}"
    calls = named_calls_among(participants(communicator))
    call = NamedCall(key, label, carry_out, array, complete)
    handle = calls.submit(call, wait=not async_op)
    return handle if async_op else handle.wait()


def _check_writable(argument: str, array: object) -> None:
    if not isinstance(array, np.ndarray) or not array.flags.writeable:
        raise TypeError(
            f"{argument} is {type(array).__name__}, but must be a writable numpy "
            "array, because it is filled in place."
        )


def _own_row(
    data: Array | None, dst: Array | None, inplace: bool, instances: tuple[int, ...]
) -> Array:
    """Return the array that this instance gives to allGather, after checking all."""
    if inplace != (data is None) or (inplace and dst is None):
        raise ValueError(
            "allGather takes data, and maybe dst; or, with inplace=True, None for data "
            "and a dst that holds this instance's row. Give one or the other."
        )
    if dst is not None:
        _check_writable("dst", dst)
        if not dst.ndim or len(dst) != len(instances):
            raise ValueError(
                f"dst has shape {dst.shape}, but needs a leading axis of "
                f"{len(instances)}: a row for each instance."
            )
        if data is None:
            data = dst[instances.index(STATE.job.place.rank), ...]
    return np.asarray(data)


def _fill(dst: Array | None, rows: Sequence[Array]) -> Array:
    if dst is None:
        return np.stack(rows)
    if (dst.dtype, dst.shape[1:]) != (rows[0].dtype, rows[0].shape):
        raise ValueError(
            f"dst has rows of {dst.dtype} of shape {dst.shape[1:]}, but the instances "
            f"gather {rows[0].dtype} of shape {rows[0].shape}."
        )
    for index, row in enumerate(rows):
        dst[index] = row
    return dst
