"""Carries out the calls that all ranks agree upon: tensors become rows by address."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod

import torch
from torch import Tensor

from popdist.engine.rows import Pair, Rows
from popdist.engine.transport import Transport
from popdist.negotiation.agreement import Decision
from popdist.negotiation.call_requests import Kind, Layout, Request
from popdist.negotiation.calls import Call
from popdist.replicated.shares import even_share
from popdist.torch.tensors.tensor_rows import CODES, bytes_of, parts_of, rows_of

from .adasum import adasum
from .reduce_ops import Adasum, Average, ReduceOp, engine_reduction, neutral_value


class TensorCall(Call):
    """A call with tensors, in one piece each, which are read when its turn comes."""

    def __init__(
        self,
        request: Request,
        sources: Sequence[Tensor] = (),
        targets: Sequence[Tensor] = (),
        finish: Callable[[list[Tensor]], object] = list,
    ) -> None:
        """Make a call.

        Args:
            request: What it is.
            sources: What is read.
            targets: Where results of known shapes are written; maybe the sources.
            finish: Turns the results into what the caller gets.
        """
        super().__init__(request)
        self.sources = sources
        self.targets = targets
        self.finish = finish
        # Of alltoall: how many rows each rank has sent.
        self.received: list[int] = []


class Carrier:
    """Carries out calls among the members of one group."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._member = transport.rank
        self._size = len(transport.replicas)

    def __call__(self, pairs: Sequence[tuple[Decision, Call | None]]) -> None:
        """Carry out a round's calls: the reductions together, the rest in order."""
        reductions = [
            (decision.request, _tensors_of(decision.request, call))
            for decision, call in pairs
            if decision.request.kind is Kind.ALLREDUCE
        ]
        self._reduce_all([call for call in reductions if call[0].op != Adasum])
        for request, tensors in reductions:
            if request.op == Adasum:
                self._adasum(request, tensors)
        for decision, call in pairs:
            if not isinstance(call, TensorCall):
                if call is not None:
                    call.result = decision.last
            else:
                call.result = call.finish(self._carry_out(decision, call))

    def _carry_out(self, decision: Decision, call: TensorCall) -> list[Tensor]:
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

    def _reduce_all(self, calls: "Sequence[tuple[Request, _Tensors]]") -> None:
        """Reduce the tensors of several calls, as few times as their dtypes permit."""
        batches: dict[tuple[int, int], list[Pair]] = {}
        for request, tensors in calls:
            scaled = request.prescale != 1
            batch_of: dict[torch.dtype, tuple[int, list[Pair]]] = {}
            for (_, shape), (source, target) in zip(
                request.tensors, tensors, strict=True
            ):
                dtype = target.dtype
                if dtype not in batch_of:
                    code = CODES[dtype]
                    reduction = engine_reduction(
                        ReduceOp(request.op), dtype.is_floating_point
                    )
                    batch_of[dtype] = code, batches.setdefault((code, reduction), [])
                code, batch = batch_of[dtype]
                written = Rows((target.data_ptr(),), shape, code, target)
                if scaled:
                    _scale(source, request.prescale, target)
                if scaled or source is target:
                    batch.append((written, written))
                else:
                    read = Rows((source.data_ptr(),), shape, code, source)
                    batch.append((read, written))
        for (_, reduction), batch in batches.items():
            self._transport.all_reduce(batch, reduction)
        for request, tensors in calls:
            if request.postscale != 1 or request.op == Average:
                for _, target in tensors:
                    self._complete(request, target)

    def _complete(self, request: Request, target: Tensor) -> None:
        if request.op == Average and not target.is_floating_point():
            target.div_(self._size, rounding_mode="trunc")
        if request.postscale != 1:
            _scale(target, request.postscale, target)

    def _adasum(self, request: Request, tensors: "_Tensors") -> None:
        for source, target in tensors:
            own = _prescaled(request, source)
            each = torch.empty((self._size, *source.shape), dtype=source.dtype)
            lengths = [source.nbytes] * self._size
            self._transport.all_gather(bytes_of(own), bytes_of(each), lengths)
            target.copy_(adasum(list(each)))
            if request.postscale != 1:
                _scale(target, request.postscale, target)

    def _all_gather(self, decision: Decision, call: TensorCall) -> list[Tensor]:
        results = []
        for index, source in enumerate(call.sources):
            layouts = [each.tensors[index] for each in decision.requests if each]
            rows = [shape[0] for _, shape in layouts]
            whole = torch.empty((sum(rows), *source.shape[1:]), dtype=source.dtype)
            row_bytes = prod(source.shape[1:]) * source.itemsize
            lengths = [count * row_bytes for count in rows]
            self._transport.all_gather(bytes_of(source), bytes_of(whole), lengths)
            results.append(whole)
        return results

    def _broadcast(self, call: TensorCall) -> None:
        for source, target in zip(call.sources, call.targets, strict=True):
            if call.request.root == self._member and target is not source:
                target.copy_(source)
            self._transport.broadcast(bytes_of(target), call.request.root)

    def _all_to_all(self, decision: Decision, call: TensorCall) -> list[Tensor]:
        (source,) = call.sources
        matrix = [request.counts for request in decision.requests if request]
        call.received = [counts[self._member] for counts in matrix]
        whole = torch.empty((sum(call.received), *source.shape[1:]), dtype=source.dtype)
        row_bytes = prod(source.shape[1:]) * source.itemsize
        if len({count for counts in matrix for count in counts}) == 1:
            sent = source[: sum(matrix[0])]
            self._transport.all_to_all(parts_of(sent, self._size), bytes_of(whole))
            return [whole]
        starts = accumulate(call.received, initial=0)
        for root, (start, counts) in enumerate(zip(starts, matrix, strict=False)):
            lengths = [count * row_bytes for count in counts]
            part = whole[start : start + call.received[root]]
            sent = source[: sum(counts)] if root == self._member else part
            self._transport.scatter(bytes_of(sent), bytes_of(part), lengths, root)
        return [whole]

    def _reduce_scatter(self, call: TensorCall) -> list[Tensor]:
        request = call.request
        results = []
        for source in call.sources:
            share = even_share(source.shape[0], self._member, self._size)
            read = _prescaled(request, source)
            code = CODES[source.dtype]
            reduction = engine_reduction(
                ReduceOp(request.op), source.is_floating_point()
            )
            if source.shape[0] % self._size:
                whole = torch.empty_like(source)
                rows = rows_of((read,), code), rows_of((whole,), code)
                self._transport.all_reduce([rows], reduction)
                target = whole.narrow(0, share.offset, share.length).clone()
            else:
                target = torch.empty(
                    (share.length, *source.shape[1:]), dtype=source.dtype
                )
                rows = rows_of((read,), code), rows_of((target,), code)
                self._transport.reduce_scatter(*rows, reduction)
            self._complete(request, target)
            results.append(target)
        return results


# What a reduction reads and writes.
_Tensors = list[tuple[Tensor, Tensor]]


def _tensors_of(request: Request, call: Call | None) -> _Tensors:
    """Return a reduction's tensors, also for a rank that has joined."""
    if isinstance(call, TensorCall):
        return list(zip(call.sources, call.targets, strict=True))
    filled = [_neutral(layout, ReduceOp(request.op)) for layout in request.tensors]
    return [(tensor, tensor) for tensor in filled]


def _neutral(layout: Layout, op: ReduceOp) -> Tensor:
    name, shape = layout
    dtype: torch.dtype = getattr(torch, name)
    return torch.full(shape, neutral_value(op, dtype), dtype=dtype)


def _prescaled(request: Request, source: Tensor) -> Tensor:
    """Return what a call reduces: the tensor, or a scaled copy of it."""
    if request.prescale == 1:
        return source
    scaled = torch.empty_like(source)
    _scale(source, request.prescale, scaled)
    return scaled


def _scale(source: Tensor, factor: float, target: Tensor) -> None:
    """Multiply; integers as float64, and the result is truncated."""
    if source.is_floating_point():
        torch.mul(source, factor, out=target)
    else:
        target.copy_(source.double() * factor)
