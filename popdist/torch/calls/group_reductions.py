"""The reductions of torch.distributed's process group."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor

from popdist.engine.calls.collective import run_step
from popdist.engine.group import Group
from popdist.torch import tensors
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
from popdist.torch.calls.group_calls import (
    ProcessGroupCalls,
    Tensors,
    as_real,
    op_of,
)
from popdist.torch.calls.reduce_ops import (
    check_sparse,
    engine_op,
    reduce_otherwise,
    reduce_sparse,
)
from popdist.torch.calls.untraced import untraced


@untraced
class ReductionCalls(ProcessGroupCalls):
    """The part of a process group that reduces."""

    def allreduce(
        self,
        tensors_: Tensors,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        """Reduce tensors over all members; several, as if each had a member."""
        made = self._in_core.all_reduce(tensors_, opts)
        if made is not None:
            return self._work_in_core("all_reduce", made, tensors_)
        op = op_of(opts, op)
        own = listed(tensors_)
        check_not_empty("allreduce", own)
        check_alike("allreduce", own, own[0])
        if own[0].layout is torch.strided:
            return self._all_reduce(own, op, opts, timeout, as_one=True)
        check_sparse(op, own[0])

        def steps() -> None:
            reduce_sparse(self._group, own)

        return self._steps("all_reduce", steps, own, opts, timeout, written=())

    def allreduce_coalesced(self, tensors_: Tensors, opts: Any = None) -> Any:
        """Reduce each of several tensors over all members."""
        own = listed(tensors_)
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
        name = engine_op(op, own[0].dtype)
        parts = [as_real(tensor) for tensor in own]
        if name is None:

            def steps() -> None:
                for part in parts:
                    reduce_otherwise(self._group, part, op)

            return self._steps("all_reduce", steps, own, opts, timeout)
        if as_one and len(parts) > 1:
            view = self._view(len(parts))
            call = partial(tensors.all_reduce, view, [parts], name)
        else:
            call = partial(tensors.all_reduce, self._group, parts, name)
        return self._call(call, own, opts, timeout)

    def reduce(
        self,
        tensors_: Tensors,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int = 0,
    ) -> Any:
        """Reduce a tensor where the root is."""
        root = self._root("reduce", opts, root)
        own = listed(tensors_)
        part = as_real(single("reduce", own, "tensor list"))
        op = op_of(opts, op)
        name = engine_op(op, own[0].dtype)
        written = own if self._group.rank == root else ()
        if name is not None:
            call = partial(tensors.reduce, self._group, part, name, root)
            return self._call(call, own, opts, timeout, written=written)

        def steps() -> None:
            total = part.clone()
            reduce_otherwise(self._group, total, op)
            if self._group.rank == root:
                part.detach().copy_(total)

        return self._steps(
            "reduce", steps, own, opts, timeout, read=own, written=written
        )

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
        name = engine_op(op, out.dtype)

        def steps() -> None:
            group = self._group
            real = [as_real(part.detach()) for part in parts]
            if all(part.shape == out.shape for part in parts):
                _scatter_reduction(group, torch.stack(real), out, op, name)
                return
            whole = torch.cat([part.reshape(-1) for part in real])
            if name is None:
                reduce_otherwise(group, whole, op)
            else:
                run_step(tensors.all_reduce, group, [whole], name)
            own = torch.split(whole, [part.numel() for part in real])[group.rank]
            as_real(out.detach()).copy_(own.view_as(real[group.rank]))

        return self._steps(
            "reduce_scatter", steps, [out], opts, timeout, read=list(parts)
        )

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
        names = [engine_op(op, output.dtype) for output in outputs]

        def steps() -> None:
            for output, input_, name in zip(outputs, inputs, names, strict=True):
                _scatter_reduction(self._group, as_real(input_), output, op, name)

        return self._steps(
            "reduce_scatter", steps, list(outputs), opts, read=list(inputs)
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


def _scatter_reduction(
    group: Group, whole: Tensor, output: Tensor, op: Any, name: str | None
) -> None:
    """Reduce a tensor of as many equal parts as there are members to this one's part.

    Args:
        name: The engine's name of the reduction; None if the engine does not have it.
    """
    if name is not None:
        run_step(tensors.reduce_scatter, group, whole, as_real(output), name)
        return
    parts = whole.detach().reshape(group.size, -1).clone()
    reduce_otherwise(group, parts, op)
    part = as_real(output.detach())
    part.copy_(parts[group.rank].view(part.shape))
