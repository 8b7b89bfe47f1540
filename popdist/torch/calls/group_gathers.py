"""The gathers of torch.distributed's process group, and scatter."""

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
    check_repeated,
    check_root,
    check_single,
    check_types,
    listed,
    refuse,
)
from popdist.torch.calls.group_calls import ProcessGroupCalls, Tensors, root_of
from popdist.torch.calls.untraced import untraced
from popdist.torch.tensors.within import Within


@untraced
class GatherCalls(ProcessGroupCalls):
    """The part of a process group that has a tensor for each member."""

    def allgather(
        self,
        outputs: Any,
        inputs: Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        """Gather the tensors of all members in lists."""
        given = listed(inputs)
        if isinstance(inputs, Tensor):
            outputs = [outputs]
        check_not_empty("allgather", given, "input ")
        if len(outputs) != len(given):
            refuse(
                "allgather",
                "requires input/output tensor lists to have the same length, not "
                f"{len(given)} and {len(outputs)}.",
            )
        size, several = self._group.size, len(given)
        self._check_outputs(outputs, given)
        if several == 1:
            call = partial(tensors.all_gather, self._group, given[0], outputs[0])
            return self._call(call, outputs[0], opts, timeout)

        def steps(group: Within) -> None:
            own = torch.stack([one.detach() for one in given])
            whole = torch.empty((size, *own.shape), dtype=own.dtype)
            tensors.all_gather(group, own, whole)
            for out in outputs:
                for tensor, part in zip(out, whole.flatten(0, 1), strict=True):
                    tensor.detach().copy_(part)

        return self._steps("all_gather", steps, outputs, opts, timeout, read=given)

    def _check_outputs(
        self, outputs: Sequence[Sequence[Tensor]], given: Sequence[Tensor]
    ) -> None:
        """Check the lists in which the tensors of all members are gathered."""
        size, several = self._group.size, len(given)
        for index, out in enumerate(outputs):
            if len(out) != size * several:
                refuse(
                    "allgather",
                    f"invalid output tensor list at index {index}: {len(out)} tensors "
                    f"for {size * several}.",
                )
        check_alike("allgather", given, given[0])
        begin = self._group.rank * several
        for out in outputs:
            # Sizes may differ between members.
            check_types("allgather", out, given[0])
            check_alike("allgather", out[begin : begin + several], given[0])
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
        check_not_empty("all_gather", outputs)
        for output, input_ in zip(outputs, inputs, strict=True):
            if output.dtype != input_.dtype:
                refuse(
                    "all_gather",
                    "output tensor must have the same type as input "
                    f"tensor, not {output.dtype} and {input_.dtype}.",
                )
            if output.numel() != input_.numel() * self._group.size:
                refuse(
                    "all_gather",
                    "output tensor size must be equal to world_size "
                    f"times input tensor size: {output.numel()} elements for "
                    f"{self._group.size} times {input_.numel()}.",
                )
        if len(outputs) == 1:
            call = partial(tensors.all_gather, self._group, inputs[0], outputs[0])
            return self._call(call, list(outputs), opts)

        def steps(group: Within) -> None:
            for output, input_ in zip(outputs, inputs, strict=True):
                tensors.all_gather(group, input_, output)

        return self._steps("all_gather", steps, list(outputs), opts, read=inputs)

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
        for number, out in enumerate(outputs):
            if len(out) != len(given):
                refuse(
                    "allgather_coalesced",
                    f"invalid output size: (expected length {len(given)}, got "
                    f"{len(out)}) at index {number}.",
                )
            for index, (one, other) in enumerate(zip(out, given, strict=True)):
                if one.shape != other.shape:
                    refuse(
                        "allgather_coalesced",
                        f"invalid size of output tensor at index {index}: "
                        f"{tuple(one.shape)} for {tuple(other.shape)}.",
                    )
                if one.dtype != other.dtype:
                    refuse(
                        "allgather_coalesced",
                        f"invalid tensor type at index {index}: {one.dtype} for "
                        f"{other.dtype}.",
                    )

        def steps(group: Within) -> None:
            for index, one in enumerate(given):
                tensors.all_gather(group, one, [out[index] for out in outputs])

        return self._steps("all_gather", steps, outputs, opts, read=given)

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
        given = listed(inputs)
        if isinstance(inputs, Tensor):
            outputs = [outputs] if outputs else []
        root = root_of(opts, root)
        check_root("gather", root, self._group.size)
        check_single("gather", given, "input tensor list")
        out = self._list_of_root("gather", "output", outputs, root, given[0])
        call = partial(tensors.gather, self._group, given[0], out, root)
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
        outs = listed(outputs)
        lists = [inputs] if inputs and isinstance(inputs[0], Tensor) else list(inputs)
        root = root_of(opts, root)
        check_root("scatter", root, self._group.size)
        check_single("scatter", outs, "output tensor list")
        given = self._list_of_root("scatter", "input", lists, root, outs[0])
        call = partial(tensors.scatter, self._group, given, outs[0], root)
        return self._call(call, outs, opts, timeout)

    def _list_of_root(
        self,
        what: str,
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
                refuse(what, f"requires empty {kind} on non-root.")
            return None
        check_single(what, lists, f"{kind} list")
        size, given = self._group.size, lists[0]
        if len(given) != size:
            refuse(
                what,
                f"Incorrect {kind} list size {len(given)}. {kind.capitalize()} list "
                f"size should be {size}, same as size of the process group.",
            )
        check_alike(what, given, own)
        return given
