"""The reductions of torch.distributed's process group."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from popdist.engine.spec.dtypes import REDUCTIONS
from popdist.errors import PopdistError
from popdist.torch import tensors
from popdist.torch.calls.arguments import (
    check_alike,
    check_dense,
    check_not_empty,
    check_root,
    check_single,
    listed,
    refuse,
)
from popdist.torch.calls.group_calls import (
    ProcessGroupCalls,
    Tensors,
    as_real,
    is_profiled,
    limit_of,
    op_of,
    root_of,
)
from popdist.torch.calls.reduce_ops import (
    check_sparse,
    engine_op,
    reduce_otherwise,
    reduce_sparse,
)
from popdist.torch.calls.untraced import untraced
from popdist.torch.calls.work import DONE, CompletedWork, backend_error
from popdist.torch.tensors.plain_reductions import (
    reduce_in_place,
    reduce_in_place_deferred,
)
from popdist.torch.tensors.within import Within

# Any, because torch declares no comparison of its reductions.
_SUM: Any = dist.ReduceOp.SUM
_ENGINE_SUM = REDUCTIONS["sum"]


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
        # The common case, which torch's own functions make, in few steps.
        if (
            type(opts) is dist.AllreduceOptions
            and len(tensors_) == 1
            and opts.reduceOp == _SUM
            and not is_profiled()
            and (work := self._add_up(tensors_[0], opts)) is not None
        ):
            return work
        op = op_of(opts, op)
        given = listed(tensors_)
        check_not_empty("allreduce", given)
        first = given[0]
        check_alike("allreduce", given, first)
        if first.layout is not torch.strided:
            check_sparse(op, first)
            return self._steps(
                "all_reduce",
                lambda group: reduce_sparse(group, given),
                given,
                opts,
                timeout,
                written=(),
            )
        parts = [as_real(tensor) for tensor in given]
        name = engine_op(op, first.dtype)
        if name is None:
            return self._reduce_otherwise(parts, op, given, opts, timeout)
        if len(parts) == 1:
            call = partial(tensors.all_reduce, self._group, parts, name)
        else:
            view = self._view(len(parts))
            call = partial(tensors.all_reduce, view, [parts], name)
        return self._call(call, given, opts, timeout)

    def _add_up(self, tensor: Tensor, opts: dist.AllreduceOptions) -> dist.Work | None:
        """Add up a tensor that needs no preparation. Returns None if it needs some."""
        if not tensor.is_cpu or limit_of(opts):
            return None
        asynchronous = opts.asyncOp
        start = self._start_of([tensor]) if asynchronous else False
        if start is True:
            return None
        try:
            if start:
                handle = reduce_in_place_deferred(self._group, tensor, _ENGINE_SUM)
                if handle is None:
                    return None
                self._calls_made += 1
                return self._work(handle, [tensor])
            if not reduce_in_place(self._group, tensor, _ENGINE_SUM):
                return None
        except PopdistError as error:
            raise backend_error(error) from error
        self._calls_made += 1
        return CompletedWork([tensor]) if asynchronous else DONE

    def allreduce_coalesced(self, tensors_: Tensors, opts: Any = None) -> Any:
        """Reduce each of several tensors over all members."""
        op = op_of(opts, None)
        given = listed(tensors_)
        check_dense("allreduce_coalesced", given)
        name = engine_op(op, given[0].dtype)
        parts = [as_real(tensor) for tensor in given]
        if name is None:
            return self._reduce_otherwise(parts, op, given, opts)
        return self._call(
            partial(tensors.all_reduce, self._group, parts, name), given, opts
        )

    def _reduce_otherwise(
        self,
        parts: Sequence[Tensor],
        op: Any,
        given: Any,
        opts: Any,
        timeout: timedelta | None = None,
    ) -> Any:
        def steps(group: Within) -> None:
            for part in parts:
                reduce_otherwise(group, part, op)

        return self._steps("all_reduce", steps, given, opts, timeout)

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
        given = listed(tensors_)
        root = root_of(opts, root)
        check_root("reduce", root, self._group.size)
        which = getattr(opts, "rootTensor", 0)
        if which not in range(len(given)):
            refuse("reduce", f"invalid root tensor: {which}.")
        check_single("reduce", given, "tensor list")
        op, part = op_of(opts, op), as_real(given[0])
        name = engine_op(op, given[0].dtype)
        written = given if self._group.rank == root else ()
        if name is not None:
            call = partial(tensors.reduce, self._group, part, name, root)
            return self._call(call, given, opts, timeout, written=written)

        def steps(group: Within) -> None:
            total = part.clone()
            reduce_otherwise(group, total, op)
            if group.rank == root:
                part.detach().copy_(total)

        return self._steps(
            "reduce", steps, given, opts, timeout, read=given, written=written
        )

    def reduce_scatter(
        self,
        outputs: Tensors,
        inputs: Any,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        """Reduce lists of tensors, of which member i gets the i-th."""
        outs = listed(outputs)
        lists = [inputs] if inputs and isinstance(inputs[0], Tensor) else list(inputs)
        check_single("reduce_scatter", outs, "output tensor list")
        check_single("reduce_scatter", lists, "input list")
        out, parts = outs[0], lists[0]
        if len(parts) != self._group.size:
            refuse(
                "reduce_scatter",
                f"invalid input tensor list: {len(parts)} tensors, but there are "
                f"{self._group.size} members.",
            )
        check_alike("reduce_scatter", [out], parts[self._group.rank])
        op = op_of(opts, op)
        name = engine_op(op, out.dtype)

        def steps(group: Within) -> None:
            self._scatter_sums(group, parts, out, op, name)

        return self._steps(
            "reduce_scatter", steps, [out], opts, timeout, read=list(parts)
        )

    def _scatter_sums(
        self,
        group: Within,
        parts: Sequence[Tensor],
        out: Tensor,
        op: Any,
        name: str | None,
    ) -> None:
        if name is not None and all(part.shape == out.shape for part in parts):
            whole = torch.stack([as_real(part.detach()) for part in parts])
            tensors.reduce_scatter(group, whole, as_real(out), name)
            return
        whole = torch.cat([as_real(part.detach()).reshape(-1) for part in parts])
        if name is None:
            reduce_otherwise(group, whole, op)
        else:
            tensors.all_reduce(group, [whole], name)
        sizes = [as_real(part).numel() for part in parts]
        mine = torch.split(whole, sizes)[group.rank]
        as_real(out.detach()).copy_(mine.view(as_real(out).shape))

    def reduce_scatter_single(
        self, output: Tensor, input_: Tensor, opts: Any = None
    ) -> Any:
        """Reduce a tensor, of which member i gets the i-th part."""
        return self.reduce_scatter_single_coalesced([output], [input_], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Any:
        """Reduce each of several tensors, of which member i gets the i-th part."""
        check_not_empty("reduce_scatter", outputs)
        op = op_of(opts, None)
        for output, input_ in zip(outputs, inputs, strict=True):
            if input_.dtype != output.dtype:
                refuse(
                    "reduce_scatter",
                    f"invalid tensor type: {input_.dtype} of the "
                    f"input and {output.dtype} of the output.",
                )
            if input_.numel() != output.numel() * self._group.size:
                refuse(
                    "reduce_scatter",
                    "input tensor must be the same size as output "
                    f"size times world size: {input_.numel()} elements, and "
                    f"{output.numel()} for each of {self._group.size} members.",
                )
        names = [engine_op(op, output.dtype) for output in outputs]

        def steps(group: Within) -> None:
            for output, input_, name in zip(outputs, inputs, names, strict=True):
                if name is not None:
                    tensors.reduce_scatter(
                        group, as_real(input_), as_real(output), name
                    )
                    continue
                whole = as_real(input_.detach()).reshape(group.size, -1).clone()
                reduce_otherwise(group, whole, op)
                as_real(output.detach()).copy_(
                    whole[group.rank].view(as_real(output).shape)
                )

        return self._steps(
            "reduce_scatter", steps, list(outputs), opts, read=list(inputs)
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
