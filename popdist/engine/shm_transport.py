"""The transport of one host: rows go through the shared memory of an endpoint."""

from collections.abc import Callable, Sequence
from typing import Any

from popdist.engine import _core
from popdist.engine.endpoint import Endpoint
from popdist.engine.failures import unusable
from popdist.engine.spec.dtypes import accumulation_code_of, name_of
from popdist.engine.spec.operations import DIRECT, Operation
from popdist.engine.spec.tree import nodes_of, nodes_of_parts
from popdist.engine.transport import Pair, Rows
from popdist.engine.worker import Worker
from popdist.errors import PopdistError


class ShmTransport:
    """Carries rows among the members of one arena, with so many rows in each."""

    def __init__(self, endpoint: Endpoint, replicas: Sequence[int]) -> None:
        self.rank = endpoint.rank
        self.replicas = tuple(replicas)
        self._endpoint = endpoint
        self._comm = endpoint.comm
        self._layout = _core.Layout(endpoint.rank, self.replicas)
        # By the number of the first replica.
        self._part_layouts: dict[int, _core.Layout] = {}
        self._closed = False

    @property
    def worker(self) -> Worker:
        if self._closed:
            raise unusable(None, self._endpoint.instances)
        # A forked child gets another one.
        return self._endpoint.worker

    def close(self) -> None:
        self._closed = True

    def all_reduce(
        self,
        arrays: Sequence[Pair],
        reduction: int,
        *,
        algorithm: int = -1,
        name: int = 0,
    ) -> None:
        if not arrays:
            return
        dtype = arrays[0][0].dtype
        for source, target in arrays:
            _check_pair(source, target, dtype)
        self._reduce(
            [(s.count, s.addresses, t.addresses) for s, t in arrays],
            [source.shape for source, _ in arrays],
            (Operation.ALL_REDUCE, dtype, reduction, algorithm, -1, name, 0),
        )

    def reduce(
        self, source: Rows, target: Rows, reduction: int, root: int, *, name: int = 0
    ) -> None:
        _check_pair(source, target, source.dtype)
        where = [target.address] * len(source.addresses)
        # In steps of the direct algorithm; for one-shot there is too little to gain.
        self._reduce(
            [(source.count, source.addresses, where)],
            [source.shape],
            (Operation.REDUCE, source.dtype, reduction, DIRECT, root, name, 0),
        )

    def reduce_scatter(
        self, source: Rows, target: Rows, reduction: int, *, name: int = 0
    ) -> None:
        total = sum(self.replicas)
        mine = self.replicas[self.rank]
        if source.count % total or target.count != source.count // total * mine:
            raise ValueError(
                f"The target has {target.count} elements, but the {mine} of {total} "
                f"replicas here get equal parts of {source.count}."
            )
        out = target.address
        self._reduce(
            [(source.count, source.addresses, None)],
            [source.shape],
            (Operation.REDUCE_SCATTER, source.dtype, reduction, DIRECT, -1, name, out),
        )

    def reduce_to_nodes(
        self,
        source: Rows,
        target: Rows,
        reduction: int,
        lengths: Sequence[int],
        base: int,
        *,
        name: int = 0,
    ) -> None:
        size = len(self.replicas)
        if len(lengths) != size or sum(lengths) != source.count or min(lengths) < 0:
            raise ValueError(
                f"The lengths are {list(lengths)}, but must be a number of elements "
                f"for each of {size} members, and {source.count} in all."
            )
        nodes = len(list(nodes_of(base, base + sum(self.replicas))))
        _check_nodes("target", target, source.dtype, lengths[self.rank], nodes)
        layout = self._part_layouts.get(base)
        if layout is None:
            layout = _core.Layout(self.rank, self.replicas, base)
            self._part_layouts[base] = layout
        self._call(
            self._comm.reduce_to_nodes,
            layout,
            [(source.count, source.addresses, None)],
            [source.shape],
            source.dtype,
            reduction,
            name,
            lengths,
            target.addresses,
        )

    def complete_nodes(
        self, nodes: Rows, target: Rows, reduction: int, parts: Sequence[int]
    ) -> None:
        count = len(list(nodes_of_parts(parts)))
        _check_nodes("source", nodes, target.dtype, target.count, count)
        self._call(
            self._comm.complete_nodes,
            parts,
            target.dtype,
            reduction,
            target.count,
            nodes.addresses,
            target.addresses,
        )

    def broadcast(
        self,
        row: Rows,
        root: int,
        *,
        name: int = 0,
        prelude_to: Operation | None = None,
    ) -> None:
        lengths = [row.nbytes] * len(self.replicas)
        shapes = [row.shape] if prelude_to is None else []
        self._exchange(
            (Operation.BROADCAST, prelude_to, row.dtype, root, name),
            lengths,
            shapes,
            row,
            row,
        )

    def all_gather(
        self,
        source: Rows,
        target: Rows,
        lengths: Sequence[int],
        *,
        name: int = 0,
        prelude_to: Operation | None = None,
    ) -> None:
        call = (Operation.ALL_GATHER, prelude_to, source.dtype, -1, name)
        _check_bytes("source", source, lengths[self.rank])
        _check_bytes("target", target, sum(lengths))
        self._exchange(call, lengths, [], source, target)

    def gather(
        self,
        source: Rows,
        target: Rows,
        lengths: Sequence[int],
        root: int,
        *,
        name: int = 0,
    ) -> None:
        _check_bytes("source", source, lengths[self.rank])
        if self.rank == root:
            _check_bytes("target", target, sum(lengths))
        call = (Operation.GATHER, None, source.dtype, root, name)
        self._exchange(call, lengths, [], source, target)

    def scatter(
        self,
        source: Rows,
        target: Rows,
        lengths: Sequence[int],
        root: int,
        *,
        name: int = 0,
    ) -> None:
        if self.rank == root:
            _check_bytes("source", source, sum(lengths))
        _check_bytes("target", target, lengths[self.rank])
        call = (Operation.SCATTER, None, target.dtype, root, name)
        self._exchange(call, lengths, [], source, target)

    def all_to_all(self, source: Rows, target: Rows, *, name: int = 0) -> None:
        size = len(self.replicas)
        if not source.shape or source.shape[0] != size:
            raise ValueError(
                f"The source has shape {source.shape}, but needs a leading axis of "
                f"{size}: a part for each member."
            )
        _check_bytes("target", target, source.nbytes)
        lengths = [source.nbytes // size] * size
        call = (Operation.ALL_TO_ALL, None, source.dtype, -1, name)
        self._exchange(call, lengths, [source.shape], source, target)

    def send(self, row: Rows, to: int) -> None:
        self._call(self._comm.send, to, row.dtype, row.address, row.nbytes)

    def receive(self, row: Rows, source: int) -> None:
        self._call(self._comm.receive, source, row.dtype, row.address, row.nbytes)

    def barrier(self, name: int = 0) -> None:
        self._call(self._comm.barrier, name)

    def give_up(self, what: str, error: BaseException) -> None:
        if not self._closed:
            self._endpoint.give_up(what, error)

    def accelerate(
        self, take: Callable[..., None], usual: int, leading: bool, only: type | None
    ) -> bool:
        take(self._comm, self._layout, usual, leading, only)
        return True

    def explain(self) -> PopdistError:
        return self._endpoint.failure()

    def _reduce(
        self,
        segments: "Sequence[_core.Segment]",
        shapes: Sequence[Sequence[int]],
        call: tuple[int, int, int, int, int, int, int],
    ) -> None:
        self._call(self._comm.reduce_rows, self._layout, segments, shapes, *call)

    def _exchange(
        self,
        call: tuple[Operation, Operation | None, int, int, int],
        lengths: Sequence[int],
        shapes: Sequence[Sequence[int]],
        source: Rows,
        target: Rows,
    ) -> None:
        operation, prelude_to, dtype, root, name = call
        # A barrier needs no description of arrays: for the core it stands for none.
        follows = Operation.BARRIER if prelude_to is None else prelude_to
        self._call(
            self._comm.exchange,
            operation,
            follows,
            dtype,
            root,
            name,
            lengths,
            shapes,
            source.address,
            target.address,
        )

    def _call(self, function: Callable[..., None], *args: Any) -> None:
        try:
            function(*args)
            return
        except _core.Failure:
            # Explained below: Ctrl-C while that is done must not show this exception.
            pass
        raise self._endpoint.failure()


def _check_pair(source: Rows, target: Rows, dtype: int) -> None:
    if source.dtype != dtype or target.dtype != dtype:
        raise ValueError(
            f"Rows of {name_of(source.dtype)} are to be reduced into rows of "
            f"{name_of(target.dtype)} in a call of {name_of(dtype)}, but one call has "
            "one dtype."
        )
    if source.count != target.count:
        raise ValueError(
            f"Rows of {source.count} elements are to be reduced into rows of "
            f"{target.count}. Give rows of one length."
        )


def _check_nodes(which: str, rows: Rows, dtype: int, count: int, nodes: int) -> None:
    accumulated = accumulation_code_of(dtype)
    if (rows.dtype, rows.count, len(rows.addresses)) != (accumulated, count, nodes):
        raise ValueError(
            f"The {which} has {len(rows.addresses)} rows of {rows.count} "
            f"{name_of(rows.dtype)}, but must have {nodes} of {count} "
            f"{name_of(accumulated)}: one for each node."
        )


def _check_bytes(which: str, rows: Rows, nbytes: int) -> None:
    if rows.nbytes != nbytes:
        raise ValueError(
            f"The {which} has {rows.nbytes} bytes, but the members' lengths make it "
            f"{nbytes}."
        )
