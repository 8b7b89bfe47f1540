"""The collectives that reduce: many arrays come in, and one result comes out."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from popdist.engine import _core
from popdist.engine.calls.membership import Membership, ends_group_without_memory
from popdist.engine.calls.operations import (
    ALGORITHM_NAMES,
    CHOICES,
    RING,
    Operation,
    number_of,
)
from popdist.engine.calls.overlap import Pair, prepare_all
from popdist.engine.calls.rows import Array, Prepared, address, plain, prepare
from popdist.engine.spec.dtypes import REDUCTIONS, code_of, reduction_code_of


class Reductions(_core.Reducer, Membership):
    """The part of a group that reduces. The core takes the most common calls itself."""

    def _prefer(self, algorithm: str) -> None:
        """Say how to reduce where a call does not."""
        self._algorithm = algorithm
        self._usual = _choice(algorithm)
        self._take(self._comm, self._layout, self._usual, not self._flat)

    @property
    def last_algorithm(self) -> str:
        """How the last reduction was carried out."""
        return ALGORITHM_NAMES[self._comm.last()[0]]

    @ends_group_without_memory
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
        return self._submit("all_reduce", lambda: one()[0], async_op)

    @ends_group_without_memory
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

        All arrays are read before any result is written over one of them. So `out`
        may be the arrays themselves in whatever order, and an array that is given
        several times, as tied weights are, ends as the reduction of what it was.
        """
        how = self._how(algorithm, reproducible)
        if op in REDUCTIONS and not (async_op or name):
            if out is None and all(type(x) is np.ndarray for x in arrays):
                out = [np.empty_like(x, order="C") for x in arrays]
            try:
                if out and self._reduce_lists(arrays, out, REDUCTIONS[op], how) is None:
                    return list(out)
                failed = False
            except _core.Failure:
                # Explained below, as in _call.
                failed = True
            if failed:
                raise self._endpoint.failure()
        action = self._reduction(arrays, out, op, how, number_of(name))
        return self._submit("grouped_all_reduce", action, async_op)

    @ends_group_without_memory
    def reduce(
        self,
        x: Any,
        op: str = "sum",
        root: int = 0,
        *,
        async_op: bool = False,
        name: str | None = None,
    ) -> Any:
        """Reduce the replicas' arrays, and return the result where `root` lives.

        It is one array, equal to what all_reduce gives; elsewhere None is returned.
        """
        rows = self._rows(x)
        owner, _ = self._owner(root)
        code = reduction_code_of(op, rows[0].dtype)
        total = np.empty(rows[0].shape, rows[0].dtype)
        one = prepare(rows, [total])
        where = [address(one.targets[0])] * len(rows)
        number = number_of(name)

        def action() -> Array | None:
            segment = (one.count, [address(row) for row in one.sources], where)
            self._reduce_rows(
                Operation.REDUCE, segment, rows[0], code, owner, number, 0
            )
            return total if self.rank == owner else None

        return self._submit("reduce", action, async_op)

    @ends_group_without_memory
    def reduce_scatter(
        self,
        x: Any,
        op: str = "sum",
        *,
        async_op: bool = False,
        name: str | None = None,
    ) -> Any:
        """Reduce the replicas' arrays, and give each replica its part of the result.

        The leading axis of each replica's array must be divisible by the number of
        replicas; replica r gets the r-th part of it.
        """
        rows = self._rows(x)
        total = self.num_replicas
        if rows[0].ndim < 1 or len(rows[0]) % total:
            raise ValueError(
                f"The array's shape is {rows[0].shape}, but reduce_scatter needs a "
                f"leading axis that {total} replicas can share equally."
            )
        code = reduction_code_of(op, rows[0].dtype)
        sources = [plain(row) for row in rows]
        shape = (len(rows[0]) // total, *rows[0].shape[1:])
        mine = np.empty((len(rows), *shape), rows[0].dtype)
        number = number_of(name)

        def action() -> Array:
            segment = (sources[0].size, [address(row) for row in sources], None)
            self._reduce_rows(
                Operation.REDUCE_SCATTER,
                segment,
                rows[0],
                code,
                -1,
                number,
                address(mine),
            )
            return mine[0, ...] if self._flat else mine

        return self._submit("reduce_scatter", action, async_op)

    def _how(self, algorithm: str | None, reproducible: bool) -> int:
        how = self._usual if algorithm is None else _choice(algorithm)
        if reproducible and how == RING:
            raise ValueError(
                "The ring adds in an order of its own, which depends on how replicas "
                "are spread over instances, so it cannot be reproducible. Ask for "
                "algorithm='auto', or leave reproducible out."
            )
        return how

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
        given: list[Pair] = []
        results = []
        for index, x in enumerate(xs):
            rows = self._rows(x)
            result, targets = self._targets(x, rows, outs[index] if outs else None)
            reduction_code_of(op, rows[0].dtype)
            results.append(result)
            given.append((rows, targets))
        batches: dict[np.dtype[Any], list[Prepared]] = {}
        for one in prepare_all(given):
            batches.setdefault(one.sources[0].dtype, []).append(one)

        def action() -> list[Any]:
            for dtype, batch in batches.items():
                self._call(
                    self._comm.reduce_rows,
                    self._layout,
                    [one.segment() for one in batch],
                    [one.sources[0].shape for one in batch],
                    Operation.ALL_REDUCE,
                    code_of(dtype),
                    REDUCTIONS[op],
                    how,
                    -1,
                    name,
                    0,
                )
            for batch in batches.values():
                for one in batch:
                    one.copy_results()
            return results

        return action

    def _reduce_rows(
        self,
        operation: Operation,
        segment: tuple[int, Sequence[int], Sequence[int] | None],
        row: Array,
        reduction: int,
        root: int,
        name: int,
        out: int,
    ) -> None:
        # In steps of the direct algorithm; for one-shot there is too little to gain.
        self._call(
            self._comm.reduce_rows,
            self._layout,
            [segment],
            [row.shape],
            operation,
            code_of(row.dtype),
            reduction,
            1,
            root,
            name,
            out,
        )


def _choice(algorithm: str) -> int:
    how = CHOICES.get(algorithm)
    if how is None:
        raise ValueError(
            f"The algorithm is {algorithm!r}, but must be one of {', '.join(CHOICES)}."
        )
    return how
