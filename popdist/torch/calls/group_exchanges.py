"""The calls of torch.distributed's process group that hand tensors on."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor

from popdist.engine.calls.collective import run_step
from popdist.torch import tensors
from popdist.torch.calls.arguments import (
    check_alike,
    check_not_empty,
    check_parts,
    check_repeated,
    check_types,
    listed,
    lists_of,
    refuse,
    single,
)
from popdist.torch.calls.group_calls import ProcessGroupCalls, Tensors
from popdist.torch.calls.untraced import untraced


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
        made = self._in_core.broadcast(tensors_, opts)
        if made is not None:
            return self._work_in_core("broadcast", made, tensors_)
        own = listed(tensors_)
        root = self._root("broadcast", opts, root)
        index = getattr(opts, "rootTensor", 0)
        if index not in range(len(own)):
            refuse("broadcast", f"invalid root tensor: {index} of {len(own)}.")
        source = own[index]
        check_alike("broadcast", own, source)
        copies = [tensor for tensor in own if tensor is not source]
        written = copies if self._group.rank == root else own
        if not copies:
            call = partial(tensors.broadcast, self._group, own, root)
            return self._call(call, own, opts, timeout, written=written)

        def steps() -> None:
            run_step(tensors.broadcast, self._group, [source], root)
            for tensor in copies:
                tensor.detach().copy_(source)

        return self._steps("broadcast", steps, own, opts, timeout, written=written)

    def allgather(
        self,
        outputs: Any,
        inputs: Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        """Gather the tensors of all members in lists."""
        own = listed(inputs)
        outputs = lists_of(outputs)
        check_not_empty("allgather", own, "input ")
        if len(outputs) != len(own):
            refuse(
                "allgather",
                "requires input/output tensor lists to have the same length, not "
                f"{len(own)} and {len(outputs)}.",
            )
        self._check_outputs(outputs, own)
        if len(own) == 1:
            call = partial(tensors.all_gather, self._group, own[0], outputs[0])
            return self._call(call, outputs[0], opts, timeout)

        def steps() -> None:
            stack = torch.stack([tensor.detach() for tensor in own])
            size = self._group.size
            whole = torch.empty((size, *stack.shape), dtype=stack.dtype)
            run_step(tensors.all_gather, self._group, stack, whole)
            for out in outputs:
                for tensor, part in zip(out, whole.flatten(0, 1), strict=True):
                    tensor.detach().copy_(part)

        return self._steps("all_gather", steps, outputs, opts, timeout, read=own)

    def _check_outputs(
        self, outputs: Sequence[Sequence[Tensor]], own: Sequence[Tensor]
    ) -> None:
        """Check the lists in which the tensors of all members are gathered."""
        check_alike("allgather", own, own[0])
        length = self._group.size * len(own)
        begin = self._group.rank * len(own)
        for index, out in enumerate(outputs):
            if len(out) != length:
                refuse(
                    "allgather",
                    f"invalid output tensor list at index {index}: {len(out)} tensors "
                    f"for {length}.",
                )
            # Sizes may differ between members.
            check_types("allgather", out, own[0])
            check_alike("allgather", out[begin : begin + len(own)], own[0])
            check_repeated("allgather", out)

    def all_gather_single(
        self, output: Tensor, input_: Tensor, opts: Any = None
    ) -> Any:
        """Gather the tensors of all members in one."""
        return self.all_gather_single_coalesced([output], [input_], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Any:
        """Gather each of several tensors of all members in one."""
        made = self._in_core.all_gather(outputs, inputs, opts)
        if made is not None:
            return self._work_in_core("all_gather", made, outputs)
        phrase = "output tensor size must be equal to world_size times input tensor"
        check_parts("all_gather", outputs, inputs, self._group.size, f"{phrase} size")
        if len(outputs) == 1:
            call = partial(tensors.all_gather, self._group, inputs[0], outputs[0])
            return self._call(call, list(outputs), opts)
        return self._gather_each(inputs, outputs, list(outputs), opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Tensors, opts: Any = None
    ) -> Any:
        """Gather each of several tensors of all members: a list from each member."""
        own = listed(inputs)
        check_not_empty("allgather_coalesced", own, "input ")
        if len(outputs) != self._group.size:
            refuse(
                "allgather_coalesced",
                f"output lists should be equal to world size: {len(outputs)} for "
                f"{self._group.size}.",
            )
        for index, out in enumerate(outputs):
            if len(out) != len(own):
                refuse(
                    "allgather_coalesced",
                    f"invalid output size: (expected length {len(own)}, got "
                    f"{len(out)}) at index {index}.",
                )
            for tensor, like in zip(out, own, strict=True):
                check_alike("allgather_coalesced", [tensor], like)
        return self._gather_each(own, list(zip(*outputs, strict=True)), outputs, opts)

    def _gather_each(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor | Sequence[Tensor]],
        result: Any,
        opts: Any,
    ) -> Any:
        """Gather one tensor after the other, in one call."""

        def steps() -> None:
            for tensor, output in zip(inputs, outputs, strict=True):
                run_step(tensors.all_gather, self._group, tensor, output)

        return self._steps("all_gather", steps, result, opts, read=inputs)

    def gather(
        self,
        outputs: Any,
        inputs: Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int = 0,
    ) -> Any:
        """Gather the tensors of all members in the root's list."""
        root = self._root("gather", opts, root)
        own = single("gather", listed(inputs), "input tensor list")
        out = self._list_of_root("gather", "output", lists_of(outputs), root, own)
        call = partial(tensors.gather, self._group, own, out, root)
        return self._call(call, [] if out is None else out, opts, timeout)

    def scatter(
        self,
        outputs: Tensors,
        inputs: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int = 0,
    ) -> Any:
        """Give each member its part of the root's list."""
        root = self._root("scatter", opts, root)
        own = single("scatter", listed(outputs), "output tensor list")
        parts = self._list_of_root("scatter", "input", lists_of(inputs), root, own)
        call = partial(tensors.scatter, self._group, parts, own, root)
        return self._call(call, [own], opts, timeout)

    def _list_of_root(
        self,
        call: str,
        kind: str,
        lists: Sequence[Sequence[Tensor]],
        root: int,
        own: Tensor,
    ) -> Sequence[Tensor] | None:
        """Return the root's list, which has a tensor like `own` for each member.

        Returns None on the other members, which must have none.
        """
        if self._group.rank != root:
            if lists:
                refuse(call, f"requires empty {kind} on non-root.")
            return None
        size, parts = self._group.size, single(call, lists, f"{kind} list")
        if len(parts) != size:
            refuse(
                call,
                f"Incorrect {kind} list size {len(parts)}. {kind.capitalize()} list "
                f"size should be {size}, same as size of the process group.",
            )
        check_alike(call, parts, own)
        return parts

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
        check_types("alltoall", [output], input_)
        out_lengths = self._lengths(output, output_sizes)
        lengths = self._lengths(input_, input_sizes)
        if output_sizes or input_sizes:
            parts = torch.split(input_.detach(), lengths)
            outs = torch.split(output.detach(), out_lengths)
            call = partial(tensors.all_to_all_parts, self._group, parts, outs)
        else:
            call = partial(tensors.all_to_all, self._group, input_, output)
        return self._call(call, [output], opts, timeout)

    alltoall_base = all_to_all_single

    def _lengths(self, tensor: Tensor, lengths: Sequence[int]) -> list[int]:
        """Return the length of each member's part of a tensor, by default equal."""
        size = self._group.size
        if not lengths:
            if not tensor.dim() or tensor.shape[0] % size:
                refuse(
                    "alltoall",
                    "Tensor's dim 0 does not divide equally across group "
                    f"size: {tuple(tensor.shape)} among {size}.",
                )
            return [tensor.shape[0] // size] * size
        if len(lengths) != size:
            refuse(
                "alltoall",
                "Number of tensor splits not equal to group size: "
                f"{len(lengths)} for {size}.",
            )
        if sum(lengths) != tensor.shape[0]:
            refuse(
                "alltoall",
                "Split sizes doesn't match total dim 0 size: "
                f"{list(lengths)} for {tensor.shape[0]}.",
            )
        return list(lengths)

    def alltoall(
        self,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        """Exchange lists of tensors: the i-th goes to member i."""
        size = self._group.size
        if (len(outputs), len(inputs)) != (size, size):
            refuse(
                "alltoall",
                f"lists of {len(outputs)} outputs and {len(inputs)} inputs "
                f"are given, but there are {size} members.",
            )
        call = partial(tensors.all_to_all_parts, self._group, inputs, outputs)
        return self._call(call, list(outputs), opts, timeout)
