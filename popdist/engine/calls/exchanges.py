"""The collectives that hand arrays on.

Each replica gets the same result as if it were a separate process. Arrays keep their
bits: only reductions make NaNs canonical.
"""

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from popdist.engine.calls.array_rows import LIST_TYPES, NUMPY, Array, readable, rows_of
from popdist.engine.calls.array_transport import (
    HEADER,
    ArrayTransport,
    described,
    header_of,
)
from popdist.engine.calls.collective import Action, collective
from popdist.engine.calls.destinations import check_apart, check_fits, out_arrays
from popdist.engine.calls.membership import Membership
from popdist.engine.spec.dtypes import code_of
from popdist.engine.spec.operations import Operation


class Exchanges(Membership):
    """The calls of a group that bring arrays from member to member."""

    @collective()
    def barrier(self) -> Action:
        """Return when all members have called it."""
        return ArrayTransport.barrier

    @collective()
    def broadcast(self, x: Any, root: int = 0, *, out: Any = None) -> Action:
        """Give every replica the array of replica `root`.

        All members pass an array of the same shape and dtype; only the root's elements
        matter. The result is a new array, or `out`, which may be x itself.
        """
        rows = self._rows(x)
        owner, local = self.owner_of(root)
        result, targets = self._targets(x, rows, out)
        code_of(rows[0].dtype)
        source = rows[local] if self.rank == owner else None

        def action(carrier: ArrayTransport[Array]) -> Any:
            carrier.broadcast(source, targets, owner)
            return result

        return action

    def _gather_in_core(self, x: Any, *, out: Any = None) -> Any:
        """Gather arrays in one, if the core takes them as they are."""
        if not (self._flat and type(x) is np.ndarray):
            return NotImplemented
        gathered = np.empty((self.size, *x.shape), x.dtype) if out is None else out
        if type(gathered) is not np.ndarray:
            return NotImplemented
        result = self._gather_array(x, gathered)
        if result is None:
            return (
                out if out is not None else [gathered[i, ...] for i in range(self.size)]
            )
        if result is NotImplemented:
            return result
        # The members' arrays differ, and the result has the packets of all of them.
        action = self._gather(Operation.ALL_GATHER, x, -1, out, packets=result)
        carrier = ArrayTransport(self.transport, NUMPY, 0)
        return self.submit("all_gather", partial(action, carrier), False)

    @collective(shortcut=_gather_in_core)
    def all_gather(self, x: Any, *, out: Any = None) -> Action:
        """Return a list of the arrays of all replicas, in their order.

        All members call it; shapes and even dtypes may differ. The replicas of a member
        share the arrays. `out` is a list of arrays or, if all have the same shape and
        dtype, one array with a leading axis for the replicas; it receives the arrays
        and is returned. x may be its own share of `out`.
        """
        return self._gather(Operation.ALL_GATHER, x, -1, out)

    @collective()
    def gather(self, x: Any, root: int = 0, *, out: Any = None) -> Action:
        """Return a list of the arrays of all replicas where `root` lives, else None.

        The `out` of the root's instance, in the form for all_gather, receives the
        arrays. If other instances pass `out`, it does not change.
        """
        return self._gather(Operation.GATHER, x, self.owner_of(root)[0], out)

    @collective()
    def scatter(self, x: Any, root: int = 0, *, out: Any = None) -> Action:
        """Give each replica one of the root's arrays.

        The root's instance passes an array with a row for each replica of the group
        along its leading axis, or a list with an array for each, all alike. Other
        instances pass None. The result is a new array in the form of this group, or
        `out`, which may be part of x.
        """
        owner, _ = self.owner_of(root)
        block, header = None, [0] * HEADER
        if self.rank == owner:
            block = self._scattered(x)
            header = header_of(NUMPY, block[0, ...])
        targets = None if out is None else self._rows(out, writable=True)
        if targets is not None:
            check_apart(targets)
            if block is not None:
                check_fits(targets[0], block.shape[1:], block.dtype)

        def action(carrier: ArrayTransport[Array]) -> Any:
            numbers = carrier.share_numbers(header, owner, Operation.SCATTER)
            dtype, shape = described(NUMPY, numbers)
            if targets is None:
                rows = np.empty((self.num_local_replicas, *shape), dtype)
                result, into = rows[0, ...] if self._flat else rows, [rows]
            else:
                check_fits(targets[0], shape, dtype)
                result, into = out, targets
            row_bytes = prod(shape) * dtype.itemsize
            lengths = [replicas * row_bytes for replicas in self.replicas]
            carrier.scatter(block, into, lengths, owner, code_of(dtype))
            return result

        return action

    @collective()
    def all_to_all(self, x: Any, *, out: Any = None) -> Action:
        """Exchange shares: replica j gets the j-th share of each replica's array.

        Each replica's array has a share for each replica of the group along its leading
        axis. The result has the same shape. It is a new array, or `out`, which may be x
        itself.
        """
        rows = self._rows(x)
        total = self.num_replicas
        if rows[0].ndim < 1 or len(rows[0]) != total:
            raise ValueError(
                f"The array's shape is {rows[0].shape}, but all_to_all needs a leading "
                f"axis of {total}: a share for each replica."
            )
        code_of(rows[0].dtype)
        result, targets = self._targets(x, rows, out)
        if out is not None:
            check_apart(targets)

        def action(carrier: ArrayTransport[Array]) -> Any:
            if max(self.replicas) > 1:
                self._exchange_shares(carrier, rows, targets)
            else:
                carrier.all_to_all(rows_of([readable(rows[0])]), targets)
            return result

        return action

    def _exchange_shares(
        self,
        carrier: ArrayTransport[Array],
        rows: Sequence[Array],
        targets: Sequence[Array],
    ) -> None:
        """Exchange shares among members with several replicas, in one call."""
        # Where members differ in replicas, the smaller ones leave some places empty.
        most, shape = max(self.replicas), rows[0].shape[1:]
        sent = np.zeros((self.size, most, most, *shape), rows[0].dtype)
        starts = self._starts()
        for q, begin in enumerate(starts):
            for i, row in enumerate(rows):
                sent[q, i, : self.replicas[q]] = row[begin : begin + self.replicas[q]]
        received = np.empty_like(sent)
        carrier.all_to_all(rows_of([sent]), [received])
        for q, begin in enumerate(starts):
            for i, target in enumerate(targets):
                share = received[q, : self.replicas[q], i]
                target[begin : begin + self.replicas[q]] = share

    def _scattered(self, x: Any) -> Array:
        """Return the root's arrays, one for each replica along the leading axis."""
        block = readable(np.stack(x) if isinstance(x, LIST_TYPES) else np.asarray(x))
        if block.ndim < 1 or len(block) != self.num_replicas:
            raise ValueError(
                f"The array to scatter has shape {block.shape}, but needs a leading "
                f"axis of {self.num_replicas}: a share for each replica."
            )
        return block

    def _gather(
        self,
        operation: Operation,
        x: Any,
        root: int,
        out: Any,
        packets: bytes | None = None,
    ) -> Action:
        """Prepare a gather of arrays of any shapes and dtypes.

        Args:
            root: The member that gets the arrays; -1 for all members.
            packets: The packets of all members, if they have been exchanged.
        """
        rows = [readable(row) for row in self._rows(x, alike=False)]
        targets = self._gather_targets(rows, out)
        headers = [header_of(NUMPY, row) for row in rows]

        def action(carrier: ArrayTransport[Array]) -> Any:
            given = operation, rows, headers, self.replicas
            gathered = carrier.gather_described(*given, targets, root, packets)
            return gathered if out is None or gathered is None else out

        return action

    def _gather_targets(self, rows: Sequence[Array], out: Any) -> list[Array] | None:
        """Return the arrays that `out` stands for, if this member's own fit."""
        if out is None:
            return None
        into = out_arrays(out, self.num_replicas)
        first = self._starts()[self.rank]
        for row, array in zip(rows, into[first : first + len(rows)], strict=True):
            check_fits(array, row.shape, row.dtype)
        return into
