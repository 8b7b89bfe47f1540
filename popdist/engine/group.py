"""Collectives among the replicas that the members of one arena hold.

A call is collective: all members of the group make the same calls in the same order,
with arrays of the same dtype and shape. It returns when this member has its result.
An error ends the group for all members: let it end the program.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from popdist.engine import _core
from popdist.engine.arrays import Array, Parcel, parcel, written
from popdist.engine.codes import ALGORITHM_NAMES, CHOICES, RING, Operation, number_of
from popdist.engine.dtypes import REDUCTIONS, code_of, reduction_code_of
from popdist.engine.exchanges import Exchanges
from popdist.engine.seat import Seat
from popdist.engine.tuning import Tuning, cores_of_host
from popdist.engine.work import Handle

T = TypeVar("T")


class Group(_core.Reducer, Exchanges):
    """The replicas of some instances, as one instance sees them.

    A flat group takes one array from each member. A group with replicas takes an
    array with a leading axis, one row for each local replica, or a list of as many
    arrays.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        size: int,
        *,
        replicas: Sequence[int] | None = None,
        instances: Sequence[int] | None = None,
        timeout: float = 1800.0,
        stall: float = 60.0,
        algorithm: str = "auto",
        simd: str | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        if tuning is None:
            tuning = Tuning.measured(size, cores_of_host())
        seat = Seat(
            name,
            rank,
            size,
            instances=range(size) if instances is None else instances,
            timeout=timeout,
            stall=stall,
            simd=simd,
            tuning=tuning.fitted(size),
        )
        self._sit(seat, replicas, algorithm)

    def _sit(self, seat: Seat, replicas: Sequence[int] | None, algorithm: str) -> None:
        self._seat = seat
        self._comm = seat.comm
        self._flat = replicas is None
        self.rank = seat.rank
        self.size = seat.size
        self.replicas = (1,) * seat.size if replicas is None else tuple(replicas)
        self._layout = _core.Layout(seat.rank, self.replicas)
        self._algorithm = algorithm
        self._usual = _choice(algorithm)
        self._take(self._comm, self._layout, self._usual, not self._flat)

    def view(self, replicas: Sequence[int] | None) -> "Group":
        """Return a group of the same members, with so many rows in each of them."""
        other = Group.__new__(Group)
        other._sit(self._seat, replicas, self._algorithm)
        return other

    def __repr__(self) -> str:
        state = ", closed" if self._seat.closed else ""
        return (
            f"<Group: member {self.rank} of {self.size}, "
            f"{self.num_replicas} replicas{state}>"
        )

    def __len__(self) -> int:
        return self.num_replicas

    @property
    def last_algorithm(self) -> str:
        """How the last reduction was carried out."""
        return ALGORITHM_NAMES[self._comm.last()[0]]

    def _all_reduce(
        self,
        x: Any,
        op: str = "sum",
        *,
        out: Any = None,
        algorithm: str | None = None,
        reproducible: bool = False,
        async_op: bool = False,
        name: str | None = None,
    ) -> Any:
        """All-reduce in all its cases; the core has taken the most common one."""
        how = self._how(algorithm, reproducible)
        if out is None and type(x) is np.ndarray and not (async_op or name):
            return self.all_reduce(
                x, op, out=np.empty_like(x, order="C"), algorithm=algorithm
            )
        given = [x], None if out is None else [out]
        one: Callable[[], Any] = self._reduction(*given, op, how, number_of(name))
        return self._submit(lambda: one()[0], async_op)

    def grouped_all_reduce(
        self,
        arrays: Sequence[Any],
        op: str = "sum",
        *,
        out: Sequence[Any] | None = None,
        algorithm: str | None = None,
        reproducible: bool = False,
        async_op: bool = False,
        name: str | None = None,
    ) -> Any:
        """Reduce many arrays as if they were one, and return a list of the results.

        As all_reduce for each of them, but they share the waiting: for many small
        arrays that is most of the time. Arrays of several dtypes are grouped by it.
        """
        how = self._how(algorithm, reproducible)
        if op in REDUCTIONS and not (async_op or name):
            if out is None and all(type(x) is np.ndarray for x in arrays):
                out = [np.empty_like(x, order="C") for x in arrays]
            try:
                if out and self._reduce_lists(arrays, out, REDUCTIONS[op], how) is None:
                    return list(out)
            except _core.Failure:
                raise self._seat.failure() from None
        action = self._reduction(arrays, out, op, how, number_of(name))
        return self._submit(action, async_op)

    def empty(self, shape: int | Sequence[int], dtype: Any = np.float32) -> Array:
        """Return a new array that lives in the arena.

        all_reduce of such arrays, on all members, copies nothing in or out: each
        member adds up its part of everybody's arrays where they lie. Where the
        machine does not let memory be shared so, it is an ordinary array.
        """
        kind = np.dtype(dtype)
        ordinary: Array = np.empty(shape, kind)
        held = self._seat.allocate(ordinary.nbytes)
        return ordinary if held is None else held.view(kind).reshape(ordinary.shape)

    def peek(self) -> int:
        """Return the number of the name of the call that member 0 makes next.

        Blocks until member 0 has begun it. 0 for a call without a name.
        """
        try:
            return self._comm.peek()
        except _core.Failure:
            raise self._seat.failure() from None

    def abort(self, message: str) -> None:
        """End the group: all members get a MismatchError with this message."""
        self._comm.end(message)

    def close(self) -> None:
        """Leave the group, and give back its memory. Every member does so in the end.

        Arrays made by empty() stay what they are.
        """
        self._seat.close()

    def _how(self, algorithm: str | None, reproducible: bool) -> int:
        how = self._usual if algorithm is None else _choice(algorithm)
        if reproducible and how == RING:
            raise ValueError(
                "The ring adds in an order of its own, which depends on how replicas "
                "are spread over instances, so it cannot be reproducible. Ask for "
                "algorithm='auto', or leave reproducible out."
            )
        return how

    def _submit(self, action: Callable[[], T], async_op: bool) -> T | Handle[T]:
        worker = self._seat.worker
        if async_op:
            return worker.submit(action)
        if worker.pending:
            return worker.submit(action).wait()
        return action()

    def _call(self, function: Callable[..., None], *args: Any) -> None:
        try:
            function(*args)
        except _core.Failure:
            raise self._seat.failure() from None

    def _reduction(
        self,
        xs: Sequence[Any],
        outs: Sequence[Any] | None,
        op: str,
        how: int,
        name: int,
    ) -> Callable[[], list[Any]]:
        """Check and prepare a reduction of several arrays; return what makes it."""
        if outs is not None and len(outs) != len(xs):
            raise ValueError(
                f"{len(xs)} arrays are given, but {len(outs)} to write to. Give one "
                "for each."
            )
        parcels: dict[np.dtype[Any], list[Parcel]] = {}
        results = []
        for index, x in enumerate(xs):
            rows = self._rows(x)
            result, targets = self._targets(x, rows, outs[index] if outs else None)
            results.append(result)
            reduction_code_of(op, rows[0].dtype)
            parcels.setdefault(rows[0].dtype, []).append(parcel(rows, targets))

        def action() -> list[Any]:
            for dtype, batch in parcels.items():
                self._call(
                    self._comm.reduce_rows,
                    self._layout,
                    [one.segment() for one in batch],
                    Operation.ALL_REDUCE,
                    code_of(dtype),
                    REDUCTIONS[op],
                    how,
                    -1,
                    name,
                    0,
                )
                for one in batch:
                    one.settle()
            return results

        return action

    def _targets(
        self, x: Any, rows: Sequence[Array], out: Any
    ) -> tuple[Any, Sequence[Array]]:
        """Return what the caller gets, and its rows."""
        if out is not None:
            targets = self._rows(out, writable=True)
            for row, target in zip(rows, targets, strict=True):
                if row.shape != target.shape or row.dtype != target.dtype:
                    raise ValueError(
                        f"out has {target.dtype} of shape {target.shape} for a row of "
                        f"{row.dtype} of shape {row.shape}. Give one that fits."
                    )
            return out, targets
        if isinstance(x, list | tuple) and not self._flat:
            made = [np.empty(row.shape, row.dtype) for row in rows]
            return made, made
        whole = np.empty((len(rows), *rows[0].shape), rows[0].dtype)
        return (whole[0, ...] if self._flat else whole), [
            whole[i, ...] for i in range(len(rows))
        ]

    def _rows(
        self, x: Any, *, writable: bool = False, alike: bool = True
    ) -> list[Array]:
        """Return one array for each local replica."""
        rows: list[Array]
        if self._flat:
            rows = [_array(x, writable)]
        elif isinstance(x, list | tuple):
            rows = [_array(row, writable) for row in x]
        else:
            whole = _array(x, writable)
            # Also of an array with one axis, each row is an array that can be written.
            rows = [whole[i, ...] for i in range(len(whole))] if whole.ndim else []
        if len(rows) != self.num_local_replicas:
            raise ValueError(
                f"{len(rows)} rows are given, but this instance has "
                f"{self.num_local_replicas} replicas in the group. Give an array with "
                "a leading axis of that length, or a list of so many arrays."
            )
        for row in rows if alike else ():
            if row.shape != rows[0].shape or row.dtype != rows[0].dtype:
                raise ValueError(
                    f"The rows are {rows[0].dtype} of shape {rows[0].shape} and "
                    f"{row.dtype} of shape {row.shape}, but must be alike."
                )
        return rows


def _array(x: Any, writable: bool) -> Array:
    return written(x) if writable else np.asarray(x)


def _choice(algorithm: str) -> int:
    how = CHOICES.get(algorithm)
    if how is None:
        raise ValueError(
            f"The algorithm is {algorithm!r}, but must be one of {', '.join(CHOICES)}."
        )
    return how
