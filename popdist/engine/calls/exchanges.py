"""The collectives that hand arrays on.

What they do to a replica is the same as if each were a process of its own. Arrays
keep their bits: only reductions make NaNs canonical.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from popdist.engine.calls.headers import HEADER, described, header_of, headers_of
from popdist.engine.calls.membership import Membership, ends_group_without_memory
from popdist.engine.calls.operations import Operation, number_of
from popdist.engine.calls.rows import Array, bytes_of, plain, rows_of
from popdist.engine.spec.dtypes import code_of


class Exchanges(Membership):
    """The part of a group that brings arrays from member to member."""

    def barrier(self, *, async_op: bool = False, name: str | None = None) -> Any:
        """Return when all members have called it."""
        number = number_of(name)
        return self.submit("barrier", lambda: self.transport.barrier(number), async_op)

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

        All members pass an array of one shape and dtype; only the root's elements
        count. The result is a new array, or `out`, which may be x itself.
        """
        rows = self._rows(x)
        owner, local = self._owner(root)
        result, targets = self._targets(x, rows, out)
        first = plain(rows[0])
        code_of(first.dtype)
        number = number_of(name)

        def action() -> Any:
            held = plain(rows[local]) if self.rank == owner else np.empty_like(first)
            self.transport.broadcast(rows_of([held]), owner, name=number)
            for target in targets:
                target[...] = held
            return result

        return self.submit("broadcast", action, async_op)

    @ends_group_without_memory
    def all_gather(
        self, x: Any, *, async_op: bool = False, name: str | None = None
    ) -> Any:
        """Return a list of the arrays of all replicas, in their order.

        All members call it; shapes and even dtypes may differ. The arrays are this
        member's own: its replicas share them.
        """
        rows = [plain(row) for row in self._rows(x, alike=False)]
        mine, number = headers_of(rows), number_of(name)

        def action() -> list[Array]:
            headers = self._headers(Operation.ALL_GATHER, mine, number)
            return self._gathered(Operation.ALL_GATHER, rows, headers, -1, number)

        return self.submit("all_gather", action, async_op)

    @ends_group_without_memory
    def gather(
        self,
        x: Any,
        root: int = 0,
        *,
        async_op: bool = False,
        name: str | None = None,
    ) -> Any:
        """Return a list of the arrays of all replicas where `root` lives, else None."""
        rows = [plain(row) for row in self._rows(x, alike=False)]
        owner, _ = self._owner(root)
        mine, number = headers_of(rows), number_of(name)

        def action() -> list[Array] | None:
            headers = self._headers(Operation.GATHER, mine, number)
            found = self._gathered(Operation.GATHER, rows, headers, owner, number)
            return found if self.rank == owner else None

        return self.submit("gather", action, async_op)

    @ends_group_without_memory
    def scatter(
        self,
        x: Any,
        root: int = 0,
        *,
        async_op: bool = False,
        name: str | None = None,
    ) -> Any:
        """Give each replica one of the arrays that `root` has.

        Where the root lives, x is an array with a leading axis of as many rows as the
        group has replicas, or a list of so many arrays alike. Others pass None.
        Returns an array as this group's calls take it.
        """
        owner, _ = self._owner(root)
        block, header = None, np.zeros(HEADER, np.int64)
        number = number_of(name)
        if self.rank == owner:
            block = self._scattered(x)
            header = header_of(block[0, ...])

        def action() -> Array:
            self.transport.broadcast(
                rows_of([header]),
                owner,
                name=number,
                prelude_to=Operation.SCATTER,
            )
            dtype, shape = described(header)
            mine = np.empty((self.num_local_replicas, *shape), dtype)
            each = prod(shape) * dtype.itemsize
            source = mine if block is None else block
            lengths = [rows * each for rows in self.replicas]
            self.transport.scatter(
                rows_of([source]), rows_of([mine]), lengths, owner, name=number
            )
            return mine[0, ...] if self._flat else mine

        return self.submit("scatter", action, async_op)

    @ends_group_without_memory
    def all_to_all(
        self, x: Any, *, async_op: bool = False, name: str | None = None
    ) -> Any:
        """Hand each replica its part: what replica i has for j, j gets from i.

        Each replica's array has a leading axis of as many parts as the group has
        replicas; the result has the same shape.
        """
        rows = self._rows(x)
        total, most = self.num_replicas, max(self.replicas)
        if rows[0].ndim < 1 or len(rows[0]) != total:
            raise ValueError(
                f"The array's shape is {rows[0].shape}, but all_to_all needs a leading "
                f"axis of {total}: a part for each replica."
            )
        shape, dtype = rows[0].shape[1:], rows[0].dtype
        code_of(dtype)
        # Where members differ in replicas, the smaller ones leave some places empty.
        sent = np.zeros((self.size, most, most, *shape), dtype)
        starts, number = self._starts(), number_of(name)

        def action() -> Array:
            for q, begin in enumerate(starts):
                for i, row in enumerate(rows):
                    sent[q, i, : self.replicas[q]] = row[
                        begin : begin + self.replicas[q]
                    ]
            got = np.empty_like(sent)
            self.transport.all_to_all(rows_of([sent]), rows_of([got]), name=number)
            result = np.empty((len(rows), total, *shape), dtype)
            for q, begin in enumerate(starts):
                for i in range(len(rows)):
                    part = got[q, : self.replicas[q], i]
                    result[i, begin : begin + self.replicas[q]] = part
            return result[0, ...] if self._flat else result

        return self.submit("all_to_all", action, async_op)

    def _scattered(self, x: Any) -> Array:
        block = plain(np.stack(x) if isinstance(x, list | tuple) else np.asarray(x))
        if block.ndim < 1 or len(block) != self.num_replicas:
            raise ValueError(
                f"The array to scatter has shape {block.shape}, but needs a leading "
                f"axis of {self.num_replicas}: a part for each replica."
            )
        return block

    def _headers(self, operation: Operation, mine: Array, name: int) -> Array:
        """Return what every replica's array is like."""
        all_of_them = np.empty((self.num_replicas, HEADER), np.int64)
        lengths = [count * HEADER * 8 for count in self.replicas]
        self.transport.all_gather(
            rows_of([mine]),
            rows_of([all_of_them]),
            lengths,
            name=name,
            prelude_to=operation,
        )
        return all_of_them

    def _gathered(
        self,
        operation: Operation,
        rows: Sequence[Array],
        headers: Array,
        root: int,
        name: int,
    ) -> list[Array]:
        arrays = [described(header) for header in headers]
        sizes = [prod(shape) * dtype.itemsize for dtype, shape in arrays]
        lengths = [
            sum(sizes[begin : begin + count])
            for begin, count in zip(self._starts(), self.replicas, strict=True)
        ]
        if len(rows) == 1:
            mine = rows[0]
        else:
            mine = np.concatenate([row.reshape(-1).view(np.uint8) for row in rows])
        wanted = root < 0 or root == self.rank
        whole = np.empty(sum(sizes) if wanted else 0, np.uint8)
        source, target = bytes_of(mine), bytes_of(whole)
        if operation is Operation.ALL_GATHER:
            self.transport.all_gather(source, target, lengths, name=name)
        else:
            self.transport.gather(source, target, lengths, root, name=name)
        if not wanted:
            return []
        found, at = [], 0
        for (dtype, shape), size in zip(arrays, sizes, strict=True):
            part = whole[at : at + size]
            # The next array begins where this one ends, wherever that is.
            if at % dtype.itemsize:
                part = part.copy()
            found.append(part.view(dtype).reshape(shape))
            at += size
        return found
