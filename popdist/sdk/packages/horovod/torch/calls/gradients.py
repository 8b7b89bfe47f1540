"""Calls that gradients flow through: backward is a call among the same ranks."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ...common.calls.gradient_rules import (
    check_gradient,
    factor_of_scatter,
    is_root,
)
from ...common.calls.reduce_ops import Average, Reduction
from ...common.calls.submission import HorovodHandle
from ...common.process_sets import ProcessSet
from .torch_calls import TORCH_CALLS

_AVERAGE = Reduction(Average)


class Begin(Protocol):
    """Begins a call on tensors."""

    def __call__(self, tensors: Sequence[Tensor], *, now: bool) -> HorovodHandle: ...


# Returns the gradients of a call's tensors. It gets those of the results, the tensors'
# shapes, and the results that have no gradient.
Gradient = Callable[
    [Sequence[Tensor], Sequence[torch.Size], Sequence[Tensor]], Iterable[Tensor]
]


# Any: a list of tensors, as a rule.
def results_of(begin: Begin, gradient: Gradient, tensors: Sequence[Tensor]) -> Any:
    """Make a call and return its results, which have gradients where tensors do."""
    # What is no tensor is refused later, with all that cannot be an argument.
    if torch.is_grad_enabled() and any(
        getattr(tensor, "requires_grad", False) for tensor in tensors
    ):
        results = _Call.apply(begin, gradient, *tensors)  # type: ignore[no-untyped-call]
        return list(results)
    return begin(tensors, now=True).wait()


class _Call(torch.autograd.Function):
    """A call whose gradients are computed by another one."""

    # Any here and below, because torch gives its context no type that has our
    # attributes.
    @staticmethod
    def forward(
        ctx: Any, begin: Begin, gradient: Gradient, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        results = tuple(begin(tensors, now=True).wait())
        ctx.gradient = gradient
        ctx.shapes = [tensor.shape for tensor in tensors]
        others = [result for result in results if not result.is_floating_point()]
        ctx.mark_non_differentiable(*others)
        # Not among the tensors that torch saves: it frees those after the first
        # backward pass, and a program may start one from each result in turn.
        ctx.others = [other.clone() for other in others]
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *ctx.gradient(grads, ctx.shapes, ctx.others)


def _reduced(
    tensors: Sequence[Tensor], process_set: ProcessSet, reduction: Reduction = _AVERAGE
) -> list[Tensor]:
    handle = TORCH_CALLS.reduce(tensors, None, reduction, process_set, now=True)
    results: list[Tensor] = handle.wait()
    return results


def of_allreduce(
    reduction: Reduction, process_set: ProcessSet, grads: Sequence[Tensor], *_: object
) -> list[Tensor]:
    """Return the gradients, reduced as the tensors were."""
    check_gradient("allreduce", reduction, "tensor.detach()")
    return _reduced(grads, process_set, reduction)


def of_allgather(
    process_set: ProcessSet,
    grads: Sequence[Tensor],
    shapes: Sequence[torch.Size],
    _: object,
) -> list[Tensor]:
    """Return all ranks' average for this rank's rows.

    The derivative of what the ranks compute together would be the sum. Horovod 0.28
    averages, as it averages the gradients of a broadcast.
    """
    rows = [shape[0] if shape else 0 for shape in shapes]
    own = torch.tensor([rows], dtype=torch.int64)
    (each,) = TORCH_CALLS.gather([own], None, process_set, now=True).wait()
    starts = each[: process_set.rank()].sum(0).tolist()
    averages = _reduced(grads, process_set)
    return [
        average[start : start + count]
        for average, start, count in zip(averages, starts, rows, strict=True)
    ]


def of_broadcast(
    root_rank: int, process_set: ProcessSet, grads: Sequence[Tensor], *_: object
) -> list[Tensor]:
    """Return the average of all gradients for the root's tensor, zero for others."""
    averages = _reduced(grads, process_set)
    if not is_root(root_rank, process_set):
        for average in averages:
            average.zero_()
    return averages


def of_alltoall(
    process_set: ProcessSet,
    grads: Sequence[Tensor],
    shapes: Sequence[torch.Size],
    results: Sequence[Tensor],
) -> list[Tensor]:
    """Return the gradients of rows to where the rows came from."""
    received = results[-1]
    handle = TORCH_CALLS.exchange(grads[:1], received, None, process_set, now=True)
    grad, _ = handle.wait()
    if grad.shape != shapes[0]:
        # Rows that went nowhere.
        whole = grad.new_zeros(shapes[0])
        whole[: len(grad)] = grad
        grad = whole
    return [grad]


def of_reducescatter(
    reduction: Reduction, process_set: ProcessSet, grads: Sequence[Tensor], *_: object
) -> list[Tensor]:
    """Return the gathered gradients of the parts."""
    check_gradient("reducescatter", reduction, "tensor.detach()")
    factor = factor_of_scatter(reduction, process_set)
    scaled = [grad * factor for grad in grads]
    gathered: list[Tensor] = TORCH_CALLS.gather(
        scaled, None, process_set, now=True
    ).wait()
    return gathered
