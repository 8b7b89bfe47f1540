"""The members and replicas of a group, and how arrays stand for them."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from operator import index
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from popdist.engine import _core
from popdist.engine.calls.array_rows import (
    ARRAY_TYPES,
    LIST_TYPES,
    Array,
    ReplicaRows,
    is_first_of_several,
    warn_of_unmarked_rows,
    written,
    wrong_rows,
)
from popdist.engine.calls.destinations import check_fits
from popdist.engine.endpoint import Endpoint
from popdist.engine.failures import unusable
from popdist.engine.handle import AsyncOp, Handle
from popdist.engine.transport import Transport

T = TypeVar("T")


class Membership(_core.Reducer):
    """One member's place in a group, and what all its calls share."""

    rank: int
    size: int
    replicas: tuple[int, ...]
    transport: Transport
    # Whether to warn of the next array without the caller's mark on its rows.
    _expects_marks: bool

    def _use(
        self, endpoint: Endpoint, replicas: Sequence[int] | None, expects_marks: bool
    ) -> None:
        """Take an endpoint, and how arrays stand for the local replicas.

        Args:
            replicas: How many each member has; None for one, and arrays lack the axis
                of local replicas.
            expects_marks: Warn of the first array without marked rows, in one of the
                members that may have left the mark out by mistake.
        """
        self._endpoint = endpoint
        self._closed = False
        self._flat = replicas is None
        self.rank = endpoint.transport.rank
        self.size = len(endpoint.transport.instances)
        self.replicas = (1,) * self.size if replicas is None else tuple(replicas)
        if len(self.replicas) != self.size:
            raise ValueError(
                f"Numbers of replicas are given for {len(self.replicas)} members, but "
                f"the group has {self.size}. Give one for each member."
            )
        self.transport = endpoint.transport.view(self.replicas)
        self._expects_marks = expects_marks and is_first_of_several(
            self.rank, self.replicas
        )

    def _check_open(self) -> None:
        if self._closed or self._endpoint.closed:
            raise unusable(None, self.transport.instances)

    def give_up(self, what: str, error: BaseException) -> None:
        """End the group for all, because an error keeps this member from a call."""
        if not (self._closed or self._endpoint.closed):
            self.transport.give_up(what, error)

    def __len__(self) -> int:
        return self.num_replicas

    @property
    def num_replicas(self) -> int:
        """The number of replicas of all members."""
        return sum(self.replicas)

    @property
    def num_local_replicas(self) -> int:
        """The number of this member's replicas."""
        return self.replicas[self.rank]

    def submit(
        self, what: str, action: Callable[[], T], async_op: AsyncOp
    ) -> T | Handle[T]:
        """Carry a call out, at once or after those that were made before it.

        For adapters of other frameworks: `action` calls the group's transport with
        rows of their own. All arguments have been checked. Whatever is raised from
        here on ends the group, or the others would wait for the rest of the call.
        """
        if self._closed:
            raise unusable(None, self.transport.instances)
        # A forked child gets another one.
        worker = self._endpoint.worker
        if not (async_op or worker.pending):
            # The same as _carry_out, which would add a tenth to a small call.
            try:
                return action()
            except BaseException as error:
                self.give_up(what, error)
                raise
        if not async_op:
            worker.check_caller()
        handle = worker.submit(
            partial(self._carry_out, what, action),
            partial(self.give_up, what),
            deferred=async_op is not True,
        )
        return handle if async_op else handle.wait()

    def watch_deferred(self) -> None:
        """Have the core's deferred calls made even if no thread waits for them."""
        self._endpoint.worker.watch()

    def _carry_out(self, what: str, action: Callable[[], T]) -> T:
        try:
            return action()
        except BaseException as error:
            self.give_up(what, error)
            raise

    def empty(self, shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> Any:
        """Return a new array that lives in the arena.

        An all_reduce of such arrays on all members copies nothing in or out: each
        member adds up its share of all members' arrays in place. On machines that do
        not allow this kind of shared memory, and once the group has ended, it returns
        an ordinary array.
        """
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise TypeError(
                f"The dtype is {kind}, but other processes cannot use the objects of "
                "this one. Give a dtype of numbers."
            )
        self._check_open()
        ordinary: Array = np.empty(shape, kind)
        shared = self.transport.allocate(ordinary.nbytes)
        return ordinary if shared is None else shared.view(kind).reshape(ordinary.shape)

    def _starts(self) -> list[int]:
        return list(accumulate(self.replicas[:-1], initial=0))

    def owner_of(self, replica: int) -> tuple[int, int]:
        """Return a replica's member, and its index among that member's replicas."""
        replica = whole_number("root", replica)
        if not 0 <= replica < self.num_replicas:
            peer = "member" if self._flat else "replica"
            raise ValueError(
                f"The root is {peer} {replica}, but the group has {peer}s 0 to "
                f"{self.num_replicas - 1}."
            )
        member = 0
        while replica >= self.replicas[member]:
            replica -= self.replicas[member]
            member += 1
        return member, replica

    def _rows(
        self, x: Any, *, writable: bool = False, alike: bool = True
    ) -> list[Array]:
        """Return one array for each local replica."""
        rows: list[Array]
        if self._flat:
            if isinstance(x, LIST_TYPES) and any(type(a) in ARRAY_TYPES for a in x):
                raise TypeError(
                    f"A list of {len(x)} entries with arrays is given, but each member "
                    "of this group gives one array. Use grouped_all_reduce to reduce "
                    "several arrays, or make one of them with np.stack."
                )
            return [_array(x, writable)]
        if isinstance(x, LIST_TYPES):
            rows = [_array(row, writable) for row in x]
        else:
            array = _array(x, writable)
            if self._expects_marks and not (writable or isinstance(x, ReplicaRows)):
                self._warn_once(array)
            # Also of an array with one axis, each row is an array that can be written.
            rows = [array[i, ...] for i in range(len(array))] if array.ndim else []
        if len(rows) != self.num_local_replicas:
            raise wrong_rows(len(rows), self.num_local_replicas)
        for row in rows[1:] if alike else ():
            if row.shape != rows[0].shape or row.dtype != rows[0].dtype:
                raise ValueError(
                    f"The rows are {rows[0].dtype} of shape {rows[0].shape} and "
                    f"{row.dtype} of shape {row.shape}, but must be alike."
                )
        return rows

    def _warn_once(self, x: Array) -> None:
        """Warn that the rows of x are taken for replicas, if there are as many."""
        if x.ndim and len(x) == self.num_local_replicas:
            self._expects_marks = False
            warn_of_unmarked_rows(x, self.num_local_replicas)

    def _targets(
        self,
        x: Any,
        rows: Sequence[Array],
        out: Any,
        shape: Sequence[int] | None = None,
    ) -> tuple[Any, Sequence[Array]]:
        """Return the result for the caller, and its rows, which have this shape.

        A list for a list, and an array for an array.
        """
        shape, dtype = rows[0].shape if shape is None else shape, rows[0].dtype
        if out is not None:
            targets = self._rows(out, writable=True)
            for target in targets:
                check_fits(target, shape, dtype)
            return out, targets
        if self._flat:
            result = np.empty(shape, dtype)
            return result, [result]
        stack = np.empty((len(rows), *shape), dtype)
        results = [stack[i, ...] for i in range(len(rows))]
        return (results if isinstance(x, LIST_TYPES) else stack), results


def whole_number(what: str, number: Any) -> int:
    """Return a number that may be of any type of whole numbers.

    Raises:
        TypeError: It is none.
    """
    try:
        return index(number)
    except TypeError:
        raise TypeError(
            f"The {what} is {number!r}, but must be a whole number."
        ) from None


def _array(x: Any, writable: bool) -> Array:
    return written(x) if writable else np.asarray(x)
