"""Carries out the calls that all ranks agree upon: tensors become rows by address."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from math import prod
from typing import Any

from popdist.engine.call_table import pairs_in
from popdist.engine.calls.array_rows import rows_of
from popdist.engine.calls.array_transport import ArrayTransport
from popdist.engine.group import Group
from popdist.engine.rows import Framework, Pair, Rows, row_of, shares_of
from popdist.engine.spec.dtypes import DTYPES
from popdist.negotiation.agreement import Decision
from popdist.negotiation.call_requests import Kind, Request
from popdist.negotiation.calls import Call
from popdist.replicated.shares import even_share

from .adasum import adasum
from .library import NUMPY_ARRAYS, TensorLibrary
from .reduce_ops import (
    FLOATS,
    Adasum,
    Average,
    ReduceOp,
    engine_reduction,
    neutral_array,
)


class TensorCall(Call):
    """A call with tensors, in one piece each, which are read when its turn comes.

    Any, for tensors of whatever framework.
    """

    def __init__(
        self,
        library: TensorLibrary,
        request: Request,
        sources: Sequence[Any] = (),
        targets: Sequence[Any] = (),
        finish: Callable[[list[Any]], object] = list,
    ) -> None:
        """Make a call.

        Args:
            library: The functions of the tensors' framework.
            request: The call's operation and the tensors' layouts.
            sources: The tensors to read.
            targets: Tensors for results of known shapes; maybe the sources.
            finish: Makes the caller's result of the call's results.
        """
        super().__init__(request)
        self.library = library
        self.sources = sources
        self.targets = targets
        self.finish = finish
        # The number of rows from each rank, in an alltoall.
        self.received: list[int] = []

    def pairs(self) -> list[Pair]:
        """Return the rows of the tensors of a reduction, scaled if it asks for that."""
        framework, prescale = self.library.framework, self.request.prescale
        tensors = zip(self.request.tensors, self.sources, self.targets, strict=True)
        pairs = []
        for (dtype, shape), source, target in tensors:
            code = DTYPES[dtype]
            read = written = Rows((framework.address_of(target),), shape, code, target)
            if prescale != 1:
                self.library.scale(source, prescale, target)
            elif source is not target:
                read = Rows((framework.address_of(source),), shape, code, source)
            pairs.append((read, written))
        return pairs


class TableCall(Call):
    """An allreduce of tensors that are in tables, without scale factors.

    There is a table for each dtype: see Group.all_reduce_table(). Only floats are
    averaged.
    """

    def __init__(self, request: Request, tables: Mapping[str, bytes]) -> None:
        super().__init__(request)
        self.tables = tables

    def pairs(self) -> list[Pair]:
        """Return the rows of the tensors."""
        return rows_in(self.tables, [dtype for dtype, _ in self.request.tensors])


def rows_in(tables: Mapping[str, bytes], dtypes: Sequence[str]) -> list[Pair]:
    """Return the rows of the tensors of tables, in the order of their dtypes."""
    rows = {
        dtype: iter(pairs_in(table, DTYPES[dtype], 1))
        for dtype, table in tables.items()
    }
    return [next(rows[dtype]) for dtype in dtypes]


class Carrier:
    """Carries out calls among the members of one group."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._transport = group.transport
        self._member = group.rank
        self._size = group.size

    def __call__(self, pairs: Sequence[tuple[Decision, Call | None]]) -> None:
        """Carry out a round's calls: the reductions together, the rest in order."""
        reductions = [
            (
                decision.request,
                call if isinstance(call, TensorCall | TableCall) else None,
            )
            for decision, call in pairs
            if decision.request.kind is Kind.ALLREDUCE
        ]
        self._reduce_all([each for each in reductions if each[0].op != Adasum])
        for request, reduction in reductions:
            if request.op == Adasum:
                # Tables have none.
                assert not isinstance(reduction, TableCall)
                self._adasum(request, reduction)
        for decision, call in pairs:
            if isinstance(call, TensorCall):
                call.result = call.finish(self._carry_out(decision, call))
            elif call is not None:
                call.result = decision.last

    def _carry_out(self, decision: Decision, call: TensorCall) -> list[Any]:
        match call.request.kind:
            case Kind.ALLGATHER:
                return self._all_gather(decision, call)
            case Kind.BROADCAST:
                self._broadcast(call)
            case Kind.ALLTOALL:
                return self._all_to_all(decision, call)
            case Kind.REDUCESCATTER:
                return self._reduce_scatter(call)
        return list(call.targets)

    def _reduce_all(
        self, calls: Sequence[tuple[Request, TensorCall | TableCall | None]]
    ) -> None:
        """Reduce the tensors of several calls, as few times as their dtypes permit."""
        match calls:
            case [(request, TableCall() as only)]:
                for dtype, table in only.tables.items():
                    self._group.all_reduce_table(table, *_codes_of(request.op, dtype))
                return
        batches: dict[tuple[int, int], list[Pair]] = {}
        for request, call in calls:
            pairs = _neutral_pairs(request) if call is None else call.pairs()
            for (dtype, _), pair in zip(request.tensors, pairs, strict=True):
                key = _codes_of(request.op, dtype)
                batches.setdefault(key, []).append(pair)
        for (_, reduction), batch in batches.items():
            self._transport.all_reduce(batch, reduction)
        for request, call in calls:
            if isinstance(call, TensorCall) and (
                request.postscale != 1 or request.op == Average
            ):
                for (dtype, _), target in zip(
                    request.tensors, call.targets, strict=True
                ):
                    self._complete(call, dtype, target)

    def _arrays(self, framework: Framework[Any]) -> ArrayTransport[Any]:
        return ArrayTransport(self._transport, framework, 0)

    def _complete(self, call: TensorCall, dtype: str, target: Any) -> None:
        request = call.request
        if request.op == Average and dtype not in FLOATS:
            call.library.divide(target, self._size)
        if request.postscale != 1:
            call.library.scale(target, request.postscale, target)

    def _adasum(self, request: Request, call: TensorCall | None) -> None:
        library = NUMPY_ARRAYS if call is None else call.library
        for index, (dtype, shape) in enumerate(request.tensors):
            if call is None:
                own = neutral_array(ReduceOp(request.op), dtype, prod(shape))
            else:
                own = _prescaled(call, call.sources[index])
            each = library.new((self._size, *own.shape), own)
            lengths = [own.nbytes] * self._size
            self._arrays(library.framework).gather(own, [each], lengths, -1)
            # The ranks' tensors are combined on those that have not joined.
            if call is not None:
                total = adasum([library.doubles(row) for row in each])
                library.framework.copy(total, call.targets[index])
                self._complete(call, dtype, call.targets[index])

    def _all_gather(self, decision: Decision, call: TensorCall) -> list[Any]:
        results = []
        library = call.library
        for index, source in enumerate(call.sources):
            layouts = [each.tensors[index] for each in decision.requests if each]
            rows = [shape[0] for _, shape in layouts]
            whole = library.new((sum(rows), *source.shape[1:]), source)
            row_bytes = prod(source.shape[1:]) * source.itemsize
            lengths = [count * row_bytes for count in rows]
            self._arrays(library.framework).gather(source, [whole], lengths, -1)
            results.append(whole)
        return results

    def _broadcast(self, call: TensorCall) -> None:
        framework = call.library.framework
        for source, target in zip(call.sources, call.targets, strict=True):
            if call.request.root == self._member and target is not source:
                framework.copy(source, target)
            row = row_of(framework, target)
            self._transport.broadcast(row, call.request.root)

    def _all_to_all(self, decision: Decision, call: TensorCall) -> list[Any]:
        (source,) = call.sources
        library, arrays = call.library, self._arrays(call.library.framework)
        matrix = [request.counts for request in decision.requests if request]
        call.received = [counts[self._member] for counts in matrix]
        whole = library.new((sum(call.received), *source.shape[1:]), source)
        row_bytes = prod(source.shape[1:]) * source.itemsize
        if len({count for counts in matrix for count in counts}) == 1:
            sent = shares_of(library.framework, source[: sum(matrix[0])], self._size)
            arrays.all_to_all(sent, [whole])
            return [whole]
        starts = accumulate(call.received, initial=0)
        for root, (start, counts) in enumerate(zip(starts, matrix, strict=False)):
            lengths = [count * row_bytes for count in counts]
            part = whole[start : start + call.received[root]]
            own = source[: sum(counts)] if root == self._member else None
            arrays.scatter(own, [part], lengths, root)
        return [whole]

    def _reduce_scatter(self, call: TensorCall) -> list[Any]:
        request, library = call.request, call.library
        framework, results = library.framework, []
        for (dtype, _), source in zip(request.tensors, call.sources, strict=True):
            share = even_share(source.shape[0], self._member, self._size)
            code, reduction = _codes_of(request.op, dtype)
            read = row_of(framework, _prescaled(call, source), code)
            target = library.new((share.length, *source.shape[1:]), source)
            if source.shape[0] % self._size:
                whole = library.new(source.shape, source)
                pair = read, row_of(framework, whole, code)
                self._transport.all_reduce([pair], reduction)
                part = whole[share.offset : share.offset + share.length]
                framework.copy(part, target)
            else:
                written = row_of(framework, target, code)
                self._transport.reduce_scatter(read, written, reduction)
            self._complete(call, dtype, target)
            results.append(target)
        return results


# A gradient has hundreds of tensors of one dtype.
@cache
def _codes_of(op: int, dtype: str) -> tuple[int, int]:
    """Return the engine's codes of a dtype, and of its reduction."""
    return DTYPES[dtype], engine_reduction(ReduceOp(op), dtype)


def _neutral_pairs(request: Request) -> list[Pair]:
    """Return the neutral rows of a joined rank in a reduction."""
    pairs = []
    for dtype, shape in request.tensors:
        array = neutral_array(ReduceOp(request.op), dtype, prod(shape))
        row = Rows(rows_of([array]).addresses, shape, DTYPES[dtype], array)
        pairs.append((row, row))
    return pairs


def _prescaled(call: TensorCall, source: Any) -> Any:
    """Return what a call reduces: the tensor, or a scaled copy of it."""
    if call.request.prescale == 1:
        return source
    scaled = call.library.new(source.shape, source)
    call.library.scale(source, call.request.prescale, scaled)
    return scaled
