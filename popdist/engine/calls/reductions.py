"""The collectives that reduce: many arrays come in, and one result comes out."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from popdist.engine.call_table import EngineCall
from popdist.engine.calls.array_rows import (
    ARRAY_TYPES,
    Array,
    ReplicaRows,
    written,
)
from popdist.engine.calls.array_transport import ArrayTransport
from popdist.engine.calls.collective import Action, collective
from popdist.engine.calls.destinations import check_apart, check_fits
from popdist.engine.calls.membership import Membership
from popdist.engine.spec.dtypes import REDUCTIONS, code_of, reduction_code_of
from popdist.engine.spec.operations import RING, Operation, algorithm_code_of

# Makes a plain array for the result of a plain array.
_EMPTY_LIKE = partial(np.empty_like, subok=False)


class Reductions(Membership):
    """The reductions of a group. The core takes the most common calls itself."""

    def _prefer(self, algorithm: str) -> None:
        """Say how to reduce where a call does not."""
        self._algorithm = algorithm
        self._usual = algorithm_code_of(algorithm)
        # Arrays of these types need no check of their marks.
        self._plain = {ReplicaRows} if self._expects_marks else ARRAY_TYPES
        core = self.transport.core
        self._bind(
            core and core.comm,
            core and core.split,
            self._usual,
            not self._flat,
            self._plain,
            _EMPTY_LIKE,
            self._expects_marks,
        )

    def _warn_once(self, x: Array) -> None:
        super()._warn_once(x)
        # From now on the core may take arrays that are not marked.
        self._prefer(self._algorithm)

    def _refuse_calls(self) -> None:
        """Begin no further calls."""
        self._bind(None, None, self._usual, not self._flat, None, None, False)

    @collective()
    def _all_reduce(
        self,
        x: Any,
        op: str = "sum",
        *,
        out: Any = None,
        algorithm: str | None = None,
        reproducible: bool = False,
    ) -> Action:
        """All-reduce arrays that the core does not take as they are."""
        how = self._how(algorithm, reproducible)
        reduce = self._reduction([x], None if out is None else [out], op, how)
        return lambda carrier: reduce(carrier)[0]

    def all_reduce_at(
        self, address: int, count: int, dtype: int, reduction: int
    ) -> bool:
        """All-reduce elements in memory in place, in the common case, without detours.

        For adapters of other frameworks: the address is aligned, and spec.dtypes has
        the codes. Returns False, and does nothing, where this member has several rows,
        or calls of it are under way, or there is no core: then submit() a call.
        """
        return self._reduce_at(address, count, dtype, reduction) is None

    def all_reduce_table(self, table: bytes, dtype: int, reduction: int) -> None:
        """All-reduce arrays of one dtype. Local replicas share each result.

        For adapters of other frameworks, which check the arrays and keep them until
        this returns.

        Args:
            table: 64-bit numbers for each array: how many axes it has, their lengths,
                the address of each local replica's row, and the address of the result.
                A result may share memory with a row of the same array only.
            dtype: The code of the elements' dtype; see spec.dtypes.
            reduction: The code of the reduction.
        """
        # Any, because all other calls have rows.
        arrays: Any = table
        call = EngineCall(Operation.ALL_REDUCE, arrays, dtype, reduction, self._usual)
        run = partial(self.transport.run, call)
        self.submit("grouped_all_reduce", run, False)

    def _reduce_lists_in_core(
        self,
        arrays: Sequence[Any],
        op: str = "sum",
        *,
        out: Sequence[Any] | None = None,
        algorithm: str | None = None,
        reproducible: bool = False,
    ) -> Any:
        """All-reduce the arrays of a list, if the core takes them as they are."""
        how = self._how(algorithm, reproducible)
        if op not in REDUCTIONS or not {type(x) for x in arrays} <= self._plain:
            return NotImplemented
        if out is None:
            out = [np.empty(x.shape, x.dtype) for x in arrays]
        result = self._reduce_lists(arrays, out, REDUCTIONS[op], how)
        return list(out) if result is None else result

    @collective(shortcut=_reduce_lists_in_core)
    def grouped_all_reduce(
        self,
        arrays: Sequence[Any],
        op: str = "sum",
        *,
        out: Sequence[Any] | None = None,
        algorithm: str | None = None,
        reproducible: bool = False,
    ) -> Action:
        """Reduce many arrays as if they were one, and return a list of the results.

        This is all_reduce for each array, but the arrays share the waiting, which takes
        most of the time for many small arrays. Arrays of several dtypes are grouped by
        dtype.

        All arrays are read before any result overwrites one of them. So `out` may be
        the arrays themselves in any order. An array that is given several times, such
        as tied weights, becomes the reduction of its original value.
        """
        return self._reduction(arrays, out, op, self._how(algorithm, reproducible))

    @collective()
    def reduce(
        self, x: Any, op: str = "sum", root: int = 0, *, out: Any = None
    ) -> Action:
        """Reduce the replicas' arrays, and return the result where `root` lives.

        It is one array, equal to the result of all_reduce: a new array, or `out`, which
        may be x itself in a group without an axis for replicas. Other instances get
        None; if they pass `out`, it does not change.
        """
        rows = self._rows(x)
        owner, _ = self.owner_of(root)
        code = reduction_code_of(op, code_of(rows[0].dtype))
        if out is not None:
            check_fits(written(out), rows[0].shape, rows[0].dtype)
        return lambda carrier: carrier.reduce(rows, out, code, owner)

    def _scatter_in_core(self, x: Any, op: str = "sum", *, out: Any = None) -> Any:
        """Return the result if the core takes the arrays as they are."""
        if op not in REDUCTIONS or type(x) not in self._plain:
            return NotImplemented
        if out is None:
            axis, total = 0 if self._flat else 1, self.num_replicas
            if x.ndim <= axis or x.shape[axis] % total:
                return NotImplemented
            share = x.shape[axis] // total
            out = np.empty((*x.shape[:axis], share, *x.shape[axis + 1 :]), x.dtype)
        if type(out) not in ARRAY_TYPES:
            return NotImplemented
        result = self._scatter_array(x, out, REDUCTIONS[op])
        return out if result is None else result

    @collective(shortcut=_scatter_in_core)
    def reduce_scatter(self, x: Any, op: str = "sum", *, out: Any = None) -> Action:
        """Reduce the replicas' arrays, and give each replica its share of the result.

        The leading axis of each replica's array must be divisible by the number of
        replicas; replica r gets the r-th share. The result is a new array, or `out`,
        which may be part of x.
        """
        rows = self._rows(x)
        total = self.num_replicas
        if rows[0].ndim < 1 or len(rows[0]) % total:
            raise ValueError(
                f"The array's shape is {rows[0].shape}, but reduce_scatter needs a "
                f"leading axis that {total} replicas can share equally."
            )
        code = reduction_code_of(op, code_of(rows[0].dtype))
        shape = (len(rows[0]) // total, *rows[0].shape[1:])
        result, targets = self._targets(x, rows, out, shape)
        if out is not None:
            check_apart(targets)

        def action(carrier: ArrayTransport[Array]) -> Any:
            carrier.reduce_scatter(rows, targets, code)
            return result

        return action

    def _how(self, algorithm: str | None, reproducible: bool) -> int:
        how = self._usual if algorithm is None else algorithm_code_of(algorithm)
        if reproducible and how == RING:
            raise ValueError(
                "The ring's order of additions depends on how replicas are spread "
                "over instances, so it cannot be reproducible. Use algorithm='auto', "
                "or leave out reproducible."
            )
        return how

    def _reduction(
        self, xs: Sequence[Any], outs: Sequence[Any] | None, op: str, how: int
    ) -> Action:
        """Check and prepare a reduction of several arrays; return its action."""
        if outs is not None and len(outs) != len(xs):
            raise ValueError(
                f"{len(xs)} arrays are given, but {len(outs)} to write to. Give one "
                "for each."
            )
        arrays: list[tuple[Sequence[Array], Sequence[Array]]] = []
        results = []
        for index, x in enumerate(xs):
            rows = self._rows(x)
            result, targets = self._targets(x, rows, outs[index] if outs else None)
            reduction_code_of(op, code_of(rows[0].dtype))
            results.append(result)
            arrays.append((rows, targets))

        def action(carrier: ArrayTransport[Array]) -> list[Any]:
            carrier.all_reduce(arrays, REDUCTIONS[op], how)
            return results

        return action
