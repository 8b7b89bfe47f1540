"""The exchanges of torch.distributed's process group, but gathers."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor

from popdist.torch import tensors
from popdist.torch.calls.arguments import check_alike, check_root, listed, refuse
from popdist.torch.calls.group_calls import ProcessGroupCalls, Tensors, root_of
from popdist.torch.calls.untraced import untraced
from popdist.torch.tensors.within import Within


@untraced
class ExchangeCalls(ProcessGroupCalls):
    """The part of a process group that hands tensors on."""

    def broadcast(
        self,
        tensors_: Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int = 0,
    ) -> Any:
        """Overwrite tensors with the root's."""
        given = listed(tensors_)
        root = root_of(opts, root)
        which = getattr(opts, "rootTensor", 0)
        check_root("broadcast", root, self._group.size)
        if which not in range(len(given)):
            refuse("broadcast", f"invalid root tensor: {which} of {len(given)}.")
        check_alike("broadcast", given, given[which])
        chosen = given[which]

        def steps(group: Within) -> None:
            tensors.broadcast(group, [chosen], root)
            for tensor in given:
                if tensor is not chosen:
                    tensor.detach().copy_(chosen)

        written = given
        if self._group.rank == root:
            written = [tensor for tensor in given if tensor is not chosen]
        if len(given) == 1:
            call = partial(tensors.broadcast, self._group, given, root)
            return self._call(call, given, opts, timeout, written=written)
        return self._steps("broadcast", steps, given, opts, timeout, written=written)

    def all_to_all_single(
        self,
        output: Tensor,
        input_: Tensor,
        output_sizes: Sequence[int] = (),
        input_sizes: Sequence[int] = (),
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        """Exchange parts of a tensor, equal ones or of given lengths."""
        if not (output.is_contiguous() and input_.is_contiguous()):
            refuse("alltoall", "Tensors must be contiguous. Call contiguous() first.")
        if output.dtype != input_.dtype:
            refuse(
                "alltoall",
                "invalid tensor type: output tensor and input tensor must "
                f"have the same type, not {output.dtype} and {input_.dtype}.",
            )
        if not output_sizes and not input_sizes:
            self._check_divides(output)
            self._check_divides(input_)
            call = partial(tensors.all_to_all, self._group, input_, output)
            return self._call(call, [output], opts, timeout)
        outs = self._split(output, output_sizes)
        parts = self._split(input_, input_sizes)
        call = partial(tensors.all_to_all_parts, self._group, parts, outs)
        return self._call(call, [output], opts, timeout)

    alltoall_base = all_to_all_single

    def _check_divides(self, tensor: Tensor) -> None:
        if not tensor.dim() or tensor.shape[0] % self._group.size:
            refuse(
                "alltoall",
                "Tensor's dim 0 does not divide equally across group "
                f"size: {tuple(tensor.shape)} among {self._group.size}.",
            )

    def _split(self, tensor: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        size = self._group.size
        if not sizes:
            self._check_divides(tensor)
            return (
                list(tensor.detach().chunk(size))
                if tensor.shape[0]
                else [tensor.detach()] * size
            )
        if len(sizes) != size:
            refuse(
                "alltoall",
                f"Number of tensor splits not equal to group size: "
                f"{len(sizes)} for {size}.",
            )
        if sum(sizes) != tensor.shape[0]:
            refuse(
                "alltoall",
                "Split sizes doesn't match total dim 0 size: "
                f"{list(sizes)} for {tensor.shape[0]}.",
            )
        return list(torch.split(tensor.detach(), list(sizes)))

    def alltoall(
        self,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        """Exchange lists of tensors: the i-th goes to member i."""
        if (len(outputs), len(inputs)) != (self._group.size, self._group.size):
            refuse(
                "alltoall",
                f"lists of {len(outputs)} outputs and {len(inputs)} inputs "
                f"are given, but there are {self._group.size} members.",
            )
        call = partial(tensors.all_to_all_parts, self._group, inputs, outputs)
        return self._call(call, list(outputs), opts, timeout)
