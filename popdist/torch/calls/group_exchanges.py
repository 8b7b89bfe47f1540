"""The calls of torch.distributed's process group that hand tensors on."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor

from popdist.engine.rows import shares_of
from popdist.engine.spec.operations import Operation
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
from popdist.torch.tensor_rows import TORCH, flat_bytes, plain, readable


@untraced
class ExchangeCalls(ProcessGroupCalls):
    """The part of a process group that hands tensors on."""

    def broadcast(
        self,
        tensors: Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int = 0,
    ) -> Any:
        """Overwrite tensors with the root's."""
        made = self._in_core.broadcast(tensors, opts)
        if made is not None:
            return self._work_in_core("broadcast", made, tensors)
        own = listed(tensors)
        root = self._root("broadcast", opts, root)
        index = getattr(opts, "rootTensor", 0)
        if index not in range(len(own)):
            refuse("broadcast", f"invalid root tensor: {index} of {len(own)}.")
        check_alike("broadcast", own, own[index])
        source, written = None, own
        if self._group.rank == root:
            source, written = own[index], [one for one in own if one is not own[index]]
        targets = list(map(plain, written))
        action = partial(self._carrier.broadcast, source, targets, root)
        read = own if source is not None else ()
        call = "broadcast", action, own, opts, timeout
        return self._call(*call, read=read, written=written)

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

        def action() -> None:
            source = own[0] if len(own) == 1 else torch.stack(own)
            first, *others = outputs
            # Sizes may differ between members.
            ends = range(len(own), len(first) + 1, len(own))
            parts = [first[end - len(own) : end] for end in ends]
            lengths = [sum(tensor.nbytes for tensor in part) for part in parts]
            self._carrier.gather(source, first, lengths, -1)
            for out in others:
                for tensor, gathered in zip(out, first, strict=True):
                    TORCH.copy(gathered, tensor)

        result = outputs[0] if len(own) == 1 else outputs
        return self._call("all_gather", action, result, opts, timeout, read=own)

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
        each = [[output] for output in outputs]
        return self._gather_each(inputs, each, list(outputs), opts)

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
        outputs: Sequence[Sequence[Tensor]],
        result: Any,
        opts: Any,
    ) -> Any:
        """Gather one tensor after the other, in one call."""

        def action() -> None:
            for tensor, targets in zip(inputs, outputs, strict=True):
                lengths = [tensor.nbytes] * self._group.size
                self._carrier.gather(tensor, targets, lengths, -1)

        return self._call("all_gather", action, result, opts, read=inputs)

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
        lengths = [own.nbytes] * self._group.size
        action = partial(self._carrier.gather, own, out, lengths, root)
        return self._call("gather", action, out, opts, timeout, read=own)

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

        def action() -> None:
            rows = [readable(part).view(-1) for part in parts]
            lengths = [own.nbytes] * self._group.size
            source = torch.cat(rows) if rows else None
            self._carrier.scatter(source, [own], lengths, root)

        return self._call("scatter", action, [own], opts, timeout, read=parts)

    def _list_of_root(
        self,
        call: str,
        kind: str,
        lists: Sequence[Sequence[Tensor]],
        root: int,
        own: Tensor,
    ) -> Sequence[Tensor]:
        """Return the root's list, which has a tensor like `own` for each member.

        Returns an empty one on the other members, which must have none.
        """
        if self._group.rank != root:
            if lists:
                refuse(call, f"requires empty {kind} on non-root.")
            return []
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
        has_sizes = output_sizes or input_sizes
        if not has_sizes and output.numel() != input_.numel():
            sizes = f"{input_.numel()} and {output.numel()} elements"
            refuse("alltoall", f"Tensors are not equal in size or data type: {sizes}.")

        def action() -> None:
            if has_sizes:
                parts = torch.split(input_.detach(), lengths)
                self._exchange_parts(parts, torch.split(output.detach(), out_lengths))
            else:
                sent = shares_of(TORCH, input_, self._group.size)
                self._carrier.all_to_all(sent, [output])

        call = "all_to_all", action, [output], opts, timeout
        return self._call(*call, read=input_)

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
        action = partial(self._exchange_parts, inputs, outputs)
        call = "all_to_all", action, list(outputs), opts, timeout
        return self._call(*call, read=inputs)

    def _exchange_parts(self, parts: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
        """Exchange parts of any sizes, after their sizes."""
        size, own_sizes = self._group.size, [[part.nbytes for part in parts]]
        call = own_sizes, [1] * size, Operation.ALL_TO_ALL
        sizes = self._carrier.exchange_numbers(*call)
        for i, out in enumerate(outs):
            if out.nbytes != sizes[i, self._group.rank]:
                raise ValueError(
                    f"out has {out.nbytes} bytes for what member {i} sends, but it "
                    f"sends {sizes[i, self._group.rank]}."
                )
        # Elements of the largest dtypes have 16 bytes.
        pitch = -(-int(sizes.max()) // 16) * 16
        sent = torch.empty((size, pitch), dtype=torch.uint8)
        for row, part in zip(sent, parts, strict=True):
            row[: part.nbytes] = flat_bytes(readable(part))
        received = torch.empty_like(sent)
        self._carrier.all_to_all(shares_of(TORCH, sent, size), [received])
        for out, row in zip(outs, received, strict=True):
            TORCH.copy_bytes(row, 0, out)
