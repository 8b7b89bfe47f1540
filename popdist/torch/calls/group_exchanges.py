"""The calls of torch.distributed's process group that hand tensors on."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor

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
        root = self._root("broadcast", opts, root)
        index = getattr(opts, "rootTensor", 0)
        if index not in range(len(given)):
            refuse("broadcast", f"invalid root tensor: {index} of {len(given)}.")
        source = given[index]
        check_alike("broadcast", given, source)
        copies = [tensor for tensor in given if tensor is not source]
        written = copies if self._group.rank == root else given
        if not copies:
            call = partial(tensors.broadcast, self._group, given, root)
            return self._call(call, given, opts, timeout, written=written)

        def steps(group: Within) -> None:
            tensors.broadcast(group, [source], root)
            for tensor in copies:
                tensor.detach().copy_(source)

        return self._steps("broadcast", steps, given, opts, timeout, written=written)

    def allgather(
        self,
        outputs: Any,
        inputs: Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        """Gather the tensors of all members in lists."""
        given = listed(inputs)
        outputs = lists_of(outputs)
        check_not_empty("allgather", given, "input ")
        if len(outputs) != len(given):
            refuse(
                "allgather",
                "requires input/output tensor lists to have the same length, not "
                f"{len(given)} and {len(outputs)}.",
            )
        self._check_outputs(outputs, given)
        if len(given) == 1:
            call = partial(tensors.all_gather, self._group, given[0], outputs[0])
            return self._call(call, outputs[0], opts, timeout)

        def steps(group: Within) -> None:
            own = torch.stack([tensor.detach() for tensor in given])
            whole = torch.empty((group.size, *own.shape), dtype=own.dtype)
            tensors.all_gather(group, own, whole)
            for out in outputs:
                for tensor, part in zip(out, whole.flatten(0, 1), strict=True):
                    tensor.detach().copy_(part)

        return self._steps("all_gather", steps, outputs, opts, timeout, read=given)

    def _check_outputs(
        self, outputs: Sequence[Sequence[Tensor]], given: Sequence[Tensor]
    ) -> None:
        """Check the lists in which the tensors of all members are gathered."""
        check_alike("allgather", given, given[0])
        length = self._group.size * len(given)
        begin = self._group.rank * len(given)
        for index, out in enumerate(outputs):
            if len(out) != length:
                refuse(
                    "allgather",
                    f"invalid output tensor list at index {index}: {len(out)} tensors "
                    f"for {length}.",
                )
            # Sizes may differ between members.
            check_types("allgather", out, given[0])
            check_alike("allgather", out[begin : begin + len(given)], given[0])
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
        given = listed(inputs)
        check_not_empty("allgather_coalesced", given, "input ")
        if len(outputs) != self._group.size:
            refuse(
                "allgather_coalesced",
                f"output lists should be equal to world size: {len(outputs)} for "
                f"{self._group.size}.",
            )
        for index, out in enumerate(outputs):
            if len(out) != len(given):
                refuse(
                    "allgather_coalesced",
                    f"invalid output size: (expected length {len(given)}, got "
                    f"{len(out)}) at index {index}.",
                )
            for tensor, like in zip(out, given, strict=True):
                check_alike("allgather_coalesced", [tensor], like)
        return self._gather_each(given, list(zip(*outputs, strict=True)), outputs, opts)

    def _gather_each(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor | Sequence[Tensor]],
        result: Any,
        opts: Any,
    ) -> Any:
        """Gather one tensor after the other, in one call."""

        def steps(group: Within) -> None:
            for tensor, output in zip(inputs, outputs, strict=True):
                tensors.all_gather(group, tensor, output)

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
        size, given = self._group.size, single(call, lists, f"{kind} list")
        if len(given) != size:
            refuse(
                call,
                f"Incorrect {kind} list size {len(given)}. {kind.capitalize()} list "
                f"size should be {size}, same as size of the process group.",
            )
        check_alike(call, given, own)
        return given

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

    def _lengths(self, tensor: Tensor, given: Sequence[int]) -> list[int]:
        """Return the length of each member's part of a tensor, by default equal."""
        size = self._group.size
        if not given:
            if not tensor.dim() or tensor.shape[0] % size:
                refuse(
                    "alltoall",
                    "Tensor's dim 0 does not divide equally across group "
                    f"size: {tuple(tensor.shape)} among {size}.",
                )
            return [tensor.shape[0] // size] * size
        if len(given) != size:
            refuse(
                "alltoall",
                "Number of tensor splits not equal to group size: "
                f"{len(given)} for {size}.",
            )
        if sum(given) != tensor.shape[0]:
            refuse(
                "alltoall",
                "Split sizes doesn't match total dim 0 size: "
                f"{list(given)} for {tensor.shape[0]}.",
            )
        return list(given)

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
