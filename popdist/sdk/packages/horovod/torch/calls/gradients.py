"""Calls that gradients flow through: backward is a call among the same ranks."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...common.process_sets import ProcessSet
from ..execution.reduce_ops import Adasum, Average, Reduction, Sum
from .submission import (
    broadcast_tensors,
    exchange_tensor,
    gather_tensors,
    reduce_tensors,
    scatter_tensors,
)

_AVERAGE = Reduction(Average)


def _reduced(
    tensors: Sequence[Tensor],
    process_set: ProcessSet,
    reduction: Reduction = _AVERAGE,
    name: str | None = None,
) -> list[Tensor]:
    handle = reduce_tensors(
        tensors, name, reduction, process_set, in_place=False, now=True
    )
    results: list[Tensor] = handle.wait()
    return results


def needed(tensors: Sequence[Tensor]) -> bool:
    """Return whether a call's result must have a gradient."""
    # What is no tensor is refused later, with all that cannot be an argument.
    return torch.is_grad_enabled() and any(
        getattr(tensor, "requires_grad", False) for tensor in tensors
    )


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Make a call that gradients flow through."""
    return function.apply(*arguments)  # type: ignore[no-untyped-call]


# Any in all of them, because torch gives its context no type that has our attributes.
class Allreduce(torch.autograd.Function):
    """Reduces tensors; reduces their gradients in the same way."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        reduction: Reduction,
        process_set: ProcessSet,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.reduction, ctx.process_set = reduction, process_set
        return tuple(_reduced(tensors, process_set, reduction, name))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        reduction: Reduction = ctx.reduction
        if reduction.op not in (Sum, Average, Adasum):
            raise RuntimeError(
                f"allreduce with op={reduction.op.name} has no gradient. Use Sum or "
                "Average where one is needed, or give tensor.detach()."
            )
        return (None, None, None, *_reduced(grads, ctx.process_set, reduction))


class Allgather(torch.autograd.Function):
    """Gathers tensors; a rank's gradient is all ranks' average for its rows.

    The derivative of what the ranks compute together would be the sum. Horovod 0.28
    averages, as it averages the gradients of a broadcast.
    """

    @staticmethod
    def forward(
        ctx: Any, name: str | None, process_set: ProcessSet, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.process_set = process_set
        ctx.rows = [tensor.shape[0] if tensor.ndim else 0 for tensor in tensors]
        handle = gather_tensors(tensors, name, process_set, now=True)
        return tuple(handle.wait())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows = torch.tensor([ctx.rows], dtype=torch.int64)
        handle = gather_tensors([rows], None, ctx.process_set, now=True)
        (each,) = handle.wait()
        member = ctx.process_set.rank()
        starts = each[:member].sum(0).tolist()
        averages = _reduced(grads, ctx.process_set)
        parts = [
            average[start : start + count]
            for average, start, count in zip(averages, starts, ctx.rows, strict=True)
        ]
        return (None, None, *parts)


class Broadcast(torch.autograd.Function):
    """Copies the root's tensor, which gets the average of all gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        root_rank: int,
        process_set: ProcessSet,
        tensor: Tensor,
    ) -> Tensor:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        handle = broadcast_tensors(
            [tensor], root_rank, name, process_set, in_place=False, now=True
        )
        copied: Tensor = handle.first().wait()
        return copied

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = _reduced(grads, ctx.process_set)
        ranks = ctx.process_set.ranks
        if ranks[ctx.process_set.rank()] != ctx.root_rank:
            grad.zero_()
        return None, None, None, grad


class Alltoall(torch.autograd.Function):
    """Hands rows out; gradients of rows go back to where the rows came from."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, splits: Any, process_set: ProcessSet, tensor: Tensor
    ) -> tuple[Tensor, Tensor]:
        handle = exchange_tensor(tensor, splits, name, process_set, now=True)
        rows, received = handle.wait()
        ctx.process_set, ctx.received, ctx.shape = process_set, received, tensor.shape
        ctx.mark_non_differentiable(received)
        return rows, received

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        handle = exchange_tensor(
            grads[0], ctx.received, None, ctx.process_set, now=True
        )
        grad, _ = handle.wait()
        if grad.shape != ctx.shape:
            # Rows that went nowhere.
            whole = grad.new_zeros(ctx.shape)
            whole[: len(grad)] = grad
            grad = whole
        return None, None, None, grad


class Reducescatter(torch.autograd.Function):
    """Reduces tensors and hands out parts; their gradients are gathered.

    As in Horovod, they are multiplied by the number of ranks for a Sum, and are what
    the ranks have for an Average.
    """

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        reduction: Reduction,
        process_set: ProcessSet,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.reduction, ctx.process_set = reduction, process_set
        handle = scatter_tensors(tensors, name, reduction, process_set, now=True)
        return tuple(handle.wait())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        reduction: Reduction = ctx.reduction
        if reduction.op not in (Sum, Average):
            raise RuntimeError(
                f"reducescatter with op={reduction.op.name} has no gradient. Use Sum "
                "or Average where one is needed, or give tensor.detach()."
            )
        factor = reduction.prescale * reduction.postscale
        if reduction.op is Sum:
            factor *= ctx.process_set.size()
        scaled = [grad * factor for grad in grads]
        handle = gather_tensors(scaled, None, ctx.process_set, now=True)
        return (None, None, None, *handle.wait())
