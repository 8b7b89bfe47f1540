"""The collectives that hand arrays on.

Each replica gets the same result as if it were a separate process. Arrays keep their
bits: only reductions make NaNs canonical.
"""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from popdist.engine.calls.array_rows import (
    LIST_TYPES,
    NUMPY,
    Array,
    bytes_of,
    elements_of,
    readable,
    rows_of,
)
from popdist.engine.calls.destinations import check_apart, check_fits, out_arrays
from popdist.engine.calls.headers import HEADER, described, header_of, headers_of
from popdist.engine.calls.membership import Membership, ends_group_without_memory
from popdist.engine.rows import Copy, copy_results, destination_of
from popdist.engine.spec.dtypes import code_of
from popdist.engine.spec.operations import Operation, number_of


class Exchanges(Membership):
    """The part of a group that brings arrays from member to member."""

    def _gather_in_core(self, x: Any, out: Any) -> Array | bytes | None:
        """Gather arrays in one, if the core takes them as they are."""
        return None

    def barrier(self, *, async_op: bool = False, name: str | None = None) -> Any:
        """Return when all members have called it."""
        number = number_of(name)
        return self.submit("barrier", partial(self.transport.barrier, number), async_op)

    @ends_group_without_memory
    def broadcast(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Any = None,
        async_op: bool = False,
        name: str | None = None,
    ) -> Any:
        """Give every replica the array of replica `root`.

        All members pass an array of the same shape and dtype; only the root's elements
        matter. The result is a new array, or `out`, which may be x itself.
        """
        rows = self._rows(x)
        owner, local = self.owner_of(root)
        result, targets = self._targets(x, rows, out)
        first = readable(rows[0])
        code_of(first.dtype)
        number = number_of(name)

        def action() -> Any:
            row = readable(rows[local] if self.rank == owner else targets[0])
            self.transport.broadcast(rows_of([row]), owner, name=number)
            if row is not targets[0]:
                targets[0][...] = row
            # Where results are written over the root's array, this is all of it.
            for target in targets[1:]:
                target[...] = targets[0]
            return result

        return self.submit("broadcast", action, async_op)

    @ends_group_without_memory
    def all_gather(
        self,
        x: Any,
        *,
        out: Any = None,
        async_op: bool = False,
        name: str | None = None,
    ) -> Any:
        """Return a list of the arrays of all replicas, in their order.

        All members call it; shapes and even dtypes may differ. The replicas of a member
        share the arrays. `out` is a list of arrays or, if all have the same shape and
        dtype, one array with a leading axis for the replicas; it receives the arrays
        and is returned. x may be its own part of `out`.
        """
        done = None if async_op or name else self._gather_in_core(x, out)
        if isinstance(done, np.ndarray):
            return out if out is not None else [done[i, ...] for i in range(len(done))]
        return self._gather(Operation.ALL_GATHER, x, -1, out, async_op, name, done)

    @ends_group_without_memory
    def gather(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Any = None,
        async_op: bool = False,
        name: str | None = None,
    ) -> Any:
        """Return a list of the arrays of all replicas where `root` lives, else None.

        The `out` of the root's instance, in the form for all_gather, receives the
        arrays. If other instances pass `out`, it does not change.
        """
        owner, _ = self.owner_of(root)
        return self._gather(Operation.GATHER, x, owner, out, async_op, name)

    @ends_group_without_memory
    def scatter(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Any = None,
        async_op: bool = False,
        name: str | None = None,
    ) -> Any:
        """Give each replica one of the root's arrays.

        The root's instance passes an array with a row for each replica of the group
        along its leading axis, or a list with an array for each, all alike. Other
        instances pass None. The result is a new array in the form of this group, or
        `out`, which may be part of x.
        """
        owner, _ = self.owner_of(root)
        block, header = None, np.zeros(HEADER, np.int64)
        number = number_of(name)
        if self.rank == owner:
            block = self._scattered(x)
            header = header_of(block[0, ...])
        targets = None if out is None else self._rows(out, writable=True)
        if targets is not None:
            check_apart(targets)
            if block is not None:
                check_fits(targets[0], block.shape[1:], block.dtype)

        def action() -> Any:
            row = rows_of([header])
            prelude_to = Operation.SCATTER
            self.transport.broadcast(row, owner, name=number, prelude_to=prelude_to)
            parts = self._scatter(block, header, targets, owner, number)
            if parts is None:
                return out
            return parts[0, ...] if self._flat else parts

        return self.submit("scatter", action, async_op)

    @ends_group_without_memory
    def all_to_all(
        self,
        x: Any,
        *,
        out: Any = None,
        async_op: bool = False,
        name: str | None = None,
    ) -> Any:
        """Exchange parts: replica j gets the j-th part of each replica's array.

        Each replica's array has a part for each replica of the group along its leading
        axis. The result has the same shape. It is a new array, or `out`, which may be x
        itself.
        """
        rows = self._rows(x)
        total = self.num_replicas
        if rows[0].ndim < 1 or len(rows[0]) != total:
            raise ValueError(
                f"The array's shape is {rows[0].shape}, but all_to_all needs a leading "
                f"axis of {total}: a part for each replica."
            )
        code_of(rows[0].dtype)
        result, targets = self._targets(x, rows, out)
        if out is not None:
            check_apart(targets)
        number = number_of(name)

        def action() -> Any:
            if max(self.replicas) > 1:
                self._exchange_parts(rows, targets, number)
            else:
                self._exchange(rows[0], targets, number)
            return result

        return self.submit("all_to_all", action, async_op)

    def _exchange(self, row: Array, targets: Sequence[Array], name: int) -> None:
        """Exchange parts among members with one replica each."""
        source = rows_of([readable(row)])
        target, copies = destination_of(NUMPY, targets, source, source.dtype)
        self.transport.all_to_all(source, target, name=name)
        copy_results(NUMPY, copies)

    def _exchange_parts(
        self, rows: Sequence[Array], targets: Sequence[Array], name: int
    ) -> None:
        """Exchange parts among members with several replicas, in one call."""
        # Where members differ in replicas, the smaller ones leave some places empty.
        most, shape = max(self.replicas), rows[0].shape[1:]
        sent = np.zeros((self.size, most, most, *shape), rows[0].dtype)
        starts = self._starts()
        for q, begin in enumerate(starts):
            for i, row in enumerate(rows):
                sent[q, i, : self.replicas[q]] = row[begin : begin + self.replicas[q]]
        received = np.empty_like(sent)
        self.transport.all_to_all(rows_of([sent]), rows_of([received]), name=name)
        for q, begin in enumerate(starts):
            for i, target in enumerate(targets):
                part = received[q, : self.replicas[q], i]
                target[begin : begin + self.replicas[q]] = part

    def _gather_targets(self, rows: Sequence[Array], out: Any) -> list[Array] | None:
        """Return the arrays that `out` stands for, if this member's own fit."""
        if out is None:
            return None
        into = out_arrays(out, self.num_replicas)
        first = self._starts()[self.rank]
        for row, array in zip(rows, into[first : first + len(rows)], strict=True):
            check_fits(array, row.shape, row.dtype)
        return into

    def _scattered(self, x: Any) -> Array:
        block = readable(np.stack(x) if isinstance(x, LIST_TYPES) else np.asarray(x))
        if block.ndim < 1 or len(block) != self.num_replicas:
            raise ValueError(
                f"The array to scatter has shape {block.shape}, but needs a leading "
                f"axis of {self.num_replicas}: a part for each replica."
            )
        return block

    def _scatter(
        self,
        block: Array | None,
        header: Array,
        targets: Sequence[Array] | None,
        owner: int,
        name: int,
    ) -> Array | None:
        """Scatter arrays with this header; return new ones if there are no targets."""
        dtype, shape = described(header)
        source = None if block is None else rows_of([block])
        parts: Array | None = None
        copies: Sequence[Copy[Array]] = ()
        if targets is None:
            parts = np.empty((self.num_local_replicas, *shape), dtype)
            target = rows_of([parts])
        else:
            check_fits(targets[0], shape, dtype)
            target, copies = destination_of(NUMPY, targets, source, code_of(dtype))
        each = prod(shape) * dtype.itemsize
        lengths = [rows * each for rows in self.replicas]
        self.transport.scatter(source or target, target, lengths, owner, name=name)
        copy_results(NUMPY, copies)
        return parts

    def _gather(
        self,
        operation: Operation,
        x: Any,
        root: int,
        out: Any,
        async_op: bool,
        name: str | None,
        headers_of_all: bytes | None = None,
    ) -> Any:
        """Gather arrays of any shapes and dtypes on member `root`, -1 for all members.

        Args:
            headers_of_all: The headers of all replicas' arrays, if they are known.
        """
        rows = [readable(row) for row in self._rows(x, alike=False)]
        targets = self._gather_targets(rows, out)
        own_headers, number = headers_of(rows), number_of(name)

        def action() -> Any:
            if headers_of_all is None:
                headers = self._headers(operation, own_headers, number)
            else:
                headers = np.frombuffer(headers_of_all, np.int64).reshape(-1, HEADER)
            gathered = self._gathered(operation, rows, headers, root, number, targets)
            return gathered if out is None or gathered is None else out

        return self.submit(operation.public_name, action, async_op)

    def _sums_by_member(self, values: Sequence[int]) -> list[int]:
        """Return, of a value for each replica, the sum of each member's."""
        return [
            sum(values[begin : begin + count])
            for begin, count in zip(self._starts(), self.replicas, strict=True)
        ]

    def _headers(self, operation: Operation, own_headers: Array, name: int) -> Array:
        """Return the headers of all replicas' arrays."""
        headers = np.empty((self.num_replicas, HEADER), np.int64)
        lengths = [count * HEADER * 8 for count in self.replicas]
        self.transport.all_gather(
            rows_of([own_headers]),
            rows_of([headers]),
            lengths,
            name=name,
            prelude_to=operation,
        )
        return headers

    def _gathered(
        self,
        operation: Operation,
        rows: Sequence[Array],
        headers: Array,
        root: int,
        name: int,
        targets: list[Array] | None,
    ) -> list[Array] | None:
        """Return all replicas' arrays, in `targets` or new; None where not wanted."""
        is_wanted = root in (-1, self.rank)
        arrays = [described(header) for header in headers]
        sizes = [prod(shape) * dtype.itemsize for dtype, shape in arrays]
        lengths = self._sums_by_member(sizes)
        if len(rows) == 1:
            own = rows[0]
        else:
            own = np.concatenate([row.reshape(-1).view(np.uint8) for row in rows])
        source = bytes_of(own)
        copies: Sequence[Copy[Array]] = ()
        if targets is None or not is_wanted:
            memory = np.empty(sum(sizes) if is_wanted else 0, np.uint8)
            target = bytes_of(memory)
        else:
            for array, (dtype, shape) in zip(targets, arrays, strict=True):
                check_fits(array, shape, dtype)
            own_begin = sum(lengths[: self.rank])
            target, copies = destination_of(NUMPY, targets, source, own_begin=own_begin)
        if operation is Operation.ALL_GATHER:
            self.transport.all_gather(source, target, lengths, name=name)
        else:
            self.transport.gather(source, target, lengths, root, name=name)
        copy_results(NUMPY, copies)
        if targets is not None or not is_wanted:
            return targets if is_wanted else None
        begins = accumulate(sizes, initial=0)
        return [
            elements_of(memory, begin, dtype, shape)
            for begin, (dtype, shape) in zip(begins, arrays, strict=False)
        ]
