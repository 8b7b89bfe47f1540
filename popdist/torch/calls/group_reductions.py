"""The reductions of torch.distributed's process group."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor

from popdist.engine.calls.array_transport import ArrayTransport
from popdist.torch.calls.arguments import (
    check_alike,
    check_dense,
    check_not_empty,
    check_parts,
    listed,
    lists_of,
    refuse,
    single,
)
from popdist.torch.calls.group_calls import ProcessGroupCalls, Tensors, op_of
from popdist.torch.calls.reduce_ops import (
    ENGINE_OPS,
    as_real,
    check_reduction,
    check_sparse,
    kind_of,
    reduce_each,
    reduce_sparse,
)
from popdist.torch.calls.untraced import untraced
from popdist.torch.tensor_rows import TORCH


@untraced
class ReductionCalls(ProcessGroupCalls):
    """The part of a process group that reduces."""

    def allreduce(
        self,
        tensors: Tensors,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        """Reduce tensors over all members; several, as if each had a member."""
        made = self._in_core.all_reduce(tensors, opts)
        if made is not None:
            return self._work_in_core("all_reduce", made, tensors)
        op = op_of(opts, op)
        own = listed(tensors)
        check_not_empty("allreduce", own)
        check_alike("allreduce", own, own[0])
        if own[0].layout is not torch.strided:
            check_sparse(op, own[0])
            action = partial(reduce_sparse, self._carrier, self._group.size, own)
            return self._call("all_reduce", action, own, opts, timeout, written=())
        return self._all_reduce(own, op, opts, timeout, as_one=True)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        """Reduce each of several tensors over all members."""
        own = listed(tensors)
        check_dense("allreduce_coalesced", own)
        return self._all_reduce(own, op_of(opts, None), opts)

    def _all_reduce(
        self,
        own: Sequence[Tensor],
        op: Any,
        opts: Any,
        timeout: timedelta | None = None,
        as_one: bool = False,
    ) -> Any:
        """Reduce dense tensors of one dtype over all members.

        Args:
            as_one: Reduce all of them to one result, as if each had a member.
        """
        check_reduction(op, own[0].dtype)
        parts = [as_real(tensor) for tensor in own]
        action = partial(reduce_each, self._carrier, self._group.size, parts, op)
        if as_one and len(own) > 1 and kind_of(op) in ENGINE_OPS:
            view = self._group.transport.view([len(own)] * self._group.size)
            carrier = ArrayTransport(view, TORCH, 0)
            call = [(parts, parts)], ENGINE_OPS[kind_of(op)]
            action = partial(carrier.all_reduce, *call)
        return self._call("all_reduce", action, own, opts, timeout)

    def reduce(
        self,
        tensors: Tensors,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int = 0,
    ) -> Any:
        """Reduce a tensor where the root is."""
        root = self._root("reduce", opts, root)
        own = listed(tensors)
        part = as_real(single("reduce", own, "tensor list"))
        op = op_of(opts, op)
        check_reduction(op, own[0].dtype)
        is_root = self._group.rank == root

        def action() -> None:
            reduction = ENGINE_OPS.get(kind_of(op))
            if reduction is not None:
                self._carrier.reduce([part], part, reduction, root)
                return
            total = part.clone()
            reduce_each(self._carrier, self._group.size, [total], op)
            if is_root:
                part.detach().copy_(total)

        call = "reduce", action, own, opts, timeout
        return self._call(*call, read=own, written=own if is_root else ())

    def reduce_scatter(
        self,
        outputs: Tensors,
        inputs: Any,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        """Reduce lists of tensors; member i gets the i-th result."""
        out = single("reduce_scatter", listed(outputs), "output tensor list")
        parts = single("reduce_scatter", lists_of(inputs), "input list")
        if len(parts) != self._group.size:
            refuse(
                "reduce_scatter",
                f"invalid input tensor list: {len(parts)} tensors, but there are "
                f"{self._group.size} members.",
            )
        check_alike("reduce_scatter", [out], parts[self._group.rank])
        op = op_of(opts, op)
        check_reduction(op, out.dtype)

        def action() -> None:
            real = [as_real(part.detach()) for part in parts]
            if all(part.shape == out.shape for part in parts):
                self._scatter_reduction(torch.stack(real), out, op)
                return
            whole = torch.cat([part.reshape(-1) for part in real])
            reduce_each(self._carrier, self._group.size, [whole], op)
            rank = self._group.rank
            own = torch.split(whole, [part.numel() for part in real])[rank]
            as_real(out.detach()).copy_(own.view_as(real[rank]))

        call = "reduce_scatter", action, [out], opts, timeout
        return self._call(*call, read=list(parts))

    def reduce_scatter_single(
        self, output: Tensor, input_: Tensor, opts: Any = None
    ) -> Any:
        """Reduce a tensor; member i gets the i-th part."""
        return self.reduce_scatter_single_coalesced([output], [input_], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Any:
        """Reduce each of several tensors; member i gets the i-th part of each."""
        made = self._in_core.reduce_scatter(outputs, inputs, opts)
        if made is not None:
            return self._work_in_core("reduce_scatter", made, outputs)
        phrase = "input tensor must be the same size as output size times world size"
        check_parts("reduce_scatter", inputs, outputs, self._group.size, phrase)
        op = op_of(opts, None)
        for output in outputs:
            check_reduction(op, output.dtype)

        def action() -> None:
            for output, input_ in zip(outputs, inputs, strict=True):
                self._scatter_reduction(as_real(input_), output, op)

        call = "reduce_scatter", action, list(outputs), opts
        return self._call(*call, read=list(inputs))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _scatter_reduction(self, whole: Tensor, output: Tensor, op: Any) -> None:
        """Reduce a tensor of as many equal parts as there are members to one part."""
        reduction = ENGINE_OPS.get(kind_of(op))
        if reduction is not None:
            self._carrier.reduce_scatter([whole], [as_real(output)], reduction)
            return
        parts = whole.detach().reshape(self._group.size, -1).clone()
        reduce_each(self._carrier, self._group.size, [parts], op)
        part = as_real(output.detach())
        part.copy_(parts[self._group.rank].view(part.shape))
