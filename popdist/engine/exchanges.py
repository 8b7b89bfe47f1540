"""The collectives that hand arrays on, and those that reduce to a part.

What they do to a replica is the same as if each were a process of its own. Arrays
keep their bits: only reductions make NaNs canonical.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from popdist.engine.arrays import Array, address, parcel, plain, written
from popdist.engine.codes import Operation, number_of
from popdist.engine.dtypes import code_of, dtype_of, reduction_code_of

if TYPE_CHECKING:
    from popdist.engine._core import Comm, Layout

# What is told of an array before it is handed over: dtype, axes, and their lengths.
_MOST_AXES = 14
_HEADER = _MOST_AXES + 2


class Exchanges:
    """The part of a group that does more than all_reduce."""

    rank: int
    size: int
    replicas: tuple[int, ...]
    _comm: "Comm"
    _layout: "Layout"
    _flat: bool

    # These are the group's.
    _rows: Callable[..., list[Array]]
    _targets: Callable[..., tuple[Any, Sequence[Array]]]
    _submit: Callable[..., Any]
    _call: Callable[..., None]

    @property
    def num_replicas(self) -> int:
        """How many replicas the group has in all its members."""
        return sum(self.replicas)

    @property
    def num_local_replicas(self) -> int:
        """How many of them are this member's."""
        return self.replicas[self.rank]

    def barrier(self, *, async_op: bool = False) -> Any:
        """Return when all members have called it."""
        return self._submit(lambda: self._call(self._comm.barrier, 0), async_op)

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
        number = number_of(name)

        def action() -> Any:
            held = plain(rows[local]) if self.rank == owner else np.empty_like(first)
            self._exchange(
                Operation.BROADCAST,
                first.dtype,
                owner,
                [first.nbytes] * self.size,
                held,
                held,
                number,
            )
            for target in targets:
                target[...] = held
            return result

        return self._submit(action, async_op)

    def all_gather(
        self, x: Any, *, async_op: bool = False, name: str | None = None
    ) -> Any:
        """Return a list of the arrays of all replicas, in their order.

        All members call it; shapes and even dtypes may differ. The arrays are this
        member's own: its replicas share them.
        """
        rows = [plain(row) for row in self._rows(x, alike=False)]
        number = number_of(name)

        def action() -> list[Array]:
            headers = self._headers(rows, number)
            return self._gathered(Operation.ALL_GATHER, rows, headers, -1, number)

        return self._submit(action, async_op)

    def gather(self, x: Any, root: int = 0, *, async_op: bool = False) -> Any:
        """Return a list of the arrays of all replicas where `root` lives, else None."""
        rows = [plain(row) for row in self._rows(x, alike=False)]
        owner, _ = self._owner(root)

        def action() -> list[Array] | None:
            headers = self._headers(rows, 0)
            found = self._gathered(Operation.GATHER, rows, headers, owner, 0)
            return found if self.rank == owner else None

        return self._submit(action, async_op)

    def scatter(self, x: Any, root: int = 0, *, async_op: bool = False) -> Any:
        """Give each replica one of the arrays that `root` has.

        Where the root lives, x is an array with a leading axis of as many rows as the
        group has replicas, or a list of so many arrays alike. Others pass None.
        Returns an array as this group's calls take it.
        """
        owner, _ = self._owner(root)
        block = self._scattered(x) if self.rank == owner else None

        def action() -> Array:
            header = np.zeros(_HEADER, np.int64)
            if block is not None:
                header = _header_of(block[0, ...])
            self._exchange(
                Operation.BROADCAST,
                header.dtype,
                owner,
                [header.nbytes] * self.size,
                header,
                header,
                0,
            )
            dtype, shape = _described(header)
            mine = np.empty((self.num_local_replicas, *shape), dtype)
            each = int(np.prod(shape)) * dtype.itemsize
            source = mine if block is None else block
            lengths = [rows * each for rows in self.replicas]
            self._exchange(Operation.SCATTER, dtype, owner, lengths, source, mine, 0)
            return mine[0, ...] if self._flat else mine

        return self._submit(action, async_op)

    def all_to_all(self, x: Any, *, async_op: bool = False) -> Any:
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
        # Where members differ in replicas, the smaller ones leave some places empty.
        sent = np.zeros((self.size, most, most, *shape), dtype)
        starts = self._starts()

        def action() -> Array:
            for q, begin in enumerate(starts):
                for i, row in enumerate(rows):
                    sent[q, i, : self.replicas[q]] = row[
                        begin : begin + self.replicas[q]
                    ]
            got = np.empty_like(sent)
            lengths = [sent[0].nbytes] * self.size
            self._exchange(Operation.ALL_TO_ALL, dtype, -1, lengths, sent, got, 0)
            result = np.empty((len(rows), total, *shape), dtype)
            for q, begin in enumerate(starts):
                for i in range(len(rows)):
                    part = got[q, : self.replicas[q], i]
                    result[i, begin : begin + self.replicas[q]] = part
            return result[0, ...] if self._flat else result

        return self._submit(action, async_op)

    def reduce(
        self,
        x: Any,
        op: str = "sum",
        root: int = 0,
        *,
        async_op: bool = False,
    ) -> Any:
        """Reduce the replicas' arrays, and return the result where `root` lives.

        It is one array, equal to what all_reduce gives; elsewhere None is returned.
        """
        rows = self._rows(x)
        owner, _ = self._owner(root)
        code = reduction_code_of(op, rows[0].dtype)
        total = np.empty(rows[0].shape, rows[0].dtype)
        one = parcel(rows, [total])
        where = [address(one.targets[0])] * len(rows)

        def action() -> Array | None:
            segment = (one.count, [address(row) for row in one.sources], where)
            self._reduce_rows(Operation.REDUCE, segment, rows[0].dtype, code, owner, 0)
            return total if self.rank == owner else None

        return self._submit(action, async_op)

    def reduce_scatter(self, x: Any, op: str = "sum", *, async_op: bool = False) -> Any:
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

        def action() -> Array:
            segment = (sources[0].size, [address(row) for row in sources], None)
            self._reduce_rows(
                Operation.REDUCE_SCATTER, segment, mine.dtype, code, -1, address(mine)
            )
            return mine[0, ...] if self._flat else mine

        return self._submit(action, async_op)

    def send(self, x: Any, to: int, *, async_op: bool = False) -> Any:
        """Send an array to one member, which must recv() one of its shape and dtype.

        Small arrays are on their way when it returns; for others the receiver must
        have come. Only the two of them take part.
        """
        array = plain(np.asarray(x))
        peer = self._peer(to)
        code = code_of(array.dtype)

        def action() -> None:
            self._call(self._comm.send, peer, code, address(array), array.nbytes)

        return self._submit(action, async_op)

    def recv(self, out: Array, source: int, *, async_op: bool = False) -> Any:
        """Fill `out` with what one member sends, and return it."""
        held = plain(written(out))
        peer = self._peer(source)
        code = code_of(held.dtype)

        def action() -> Array:
            self._call(self._comm.receive, peer, code, address(held), held.nbytes)
            if held is not out:
                out[...] = held
            return out

        return self._submit(action, async_op)

    # --- What they share

    def _starts(self) -> list[int]:
        return [sum(self.replicas[:q]) for q in range(self.size)]

    def _owner(self, replica: int) -> tuple[int, int]:
        """Return which member a replica is of, and which of that one's it is."""
        if not 0 <= replica < self.num_replicas:
            raise ValueError(
                f"The root is replica {replica}, but the group has replicas 0 to "
                f"{self.num_replicas - 1}."
            )
        member = 0
        while replica >= self.replicas[member]:
            replica -= self.replicas[member]
            member += 1
        return member, replica

    def _peer(self, member: int) -> int:
        if not 0 <= member < self.size or member == self.rank:
            raise ValueError(
                f"The other member is {member}, but must be one of 0 to "
                f"{self.size - 1}, and not {self.rank}, which is this one."
            )
        return member

    def _scattered(self, x: Any) -> Array:
        block = plain(np.stack(x) if isinstance(x, list | tuple) else np.asarray(x))
        if block.ndim < 1 or len(block) != self.num_replicas:
            raise ValueError(
                f"The array to scatter has shape {block.shape}, but needs a leading "
                f"axis of {self.num_replicas}: a part for each replica."
            )
        return block

    def _headers(self, rows: Sequence[Array], name: int) -> Array:
        """Return what every replica's array is like."""
        mine = np.stack([_header_of(row) for row in rows])
        all_of_them = np.empty((self.num_replicas, _HEADER), np.int64)
        lengths = [count * _HEADER * 8 for count in self.replicas]
        self._exchange(
            Operation.ALL_GATHER, mine.dtype, -1, lengths, mine, all_of_them, name
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
        described = [_described(header) for header in headers]
        sizes = [int(np.prod(shape)) * dtype.itemsize for dtype, shape in described]
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
        byte = np.dtype(np.uint8)
        self._exchange(operation, byte, root, lengths, mine, whole, name)
        if not wanted:
            return []
        found, at = [], 0
        for (dtype, shape), size in zip(described, sizes, strict=True):
            part = whole[at : at + size]
            # The next array begins where this one ends, wherever that is.
            if at % dtype.itemsize:
                part = part.copy()
            found.append(part.view(dtype).reshape(shape))
            at += size
        return found

    def _exchange(
        self,
        operation: Operation,
        dtype: "np.dtype[Any]",
        root: int,
        lengths: Sequence[int],
        source: Array,
        out: Array,
        name: int,
    ) -> None:
        self._call(
            self._comm.exchange,
            operation,
            code_of(dtype),
            root,
            name,
            lengths,
            address(source),
            address(out),
        )

    def _reduce_rows(
        self,
        operation: Operation,
        segment: tuple[int, Sequence[int], Sequence[int] | None],
        dtype: "np.dtype[Any]",
        reduction: int,
        root: int,
        out: int,
    ) -> None:
        # In steps of the direct algorithm; for one-shot there is too little to gain.
        self._call(
            self._comm.reduce_rows,
            self._layout,
            [segment],
            operation,
            code_of(dtype),
            reduction,
            1,
            root,
            0,
            out,
        )


def _header_of(row: Array) -> Array:
    if row.ndim > _MOST_AXES:
        raise ValueError(
            f"The array has {row.ndim} axes, but can have at most {_MOST_AXES} here."
        )
    lengths = [*row.shape, *[0] * (_MOST_AXES - row.ndim)]
    return np.array([code_of(row.dtype), row.ndim, *lengths], np.int64)


def _described(header: Array) -> tuple["np.dtype[Any]", tuple[int, ...]]:
    code, axes, *lengths = (int(number) for number in header)
    return dtype_of(code), tuple(lengths[:axes])
