"""Calls that gradients flow through: backward is a call among the same ranks."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...common.calls.gradient_rules import GradientFunctions, gradients_of
from ...common.calls.submission import CallArguments
from .torch_calls import TORCH_CALLS


# Any: a list of tensors, as a rule.
def results_of(arguments: CallArguments, tensors: Sequence[Tensor]) -> Any:
    """Make a call and return its results, which have gradients where tensors do."""
    # What is no tensor is refused later, with all that cannot be an argument.
    if torch.is_grad_enabled() and any(
        getattr(tensor, "requires_grad", False) for tensor in tensors
    ):
        return list(_Call.apply(arguments, *tensors))  # type: ignore[no-untyped-call]
    return TORCH_CALLS.begin(arguments, tensors, now=True).wait()


class _Call(torch.autograd.Function):
    """A call whose gradients are computed by another one."""

    # Any here and below, because torch gives its context no type that has our
    # attributes.
    @staticmethod
    def forward(
        ctx: Any, arguments: CallArguments, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        results = tuple(TORCH_CALLS.begin(arguments, tensors, now=True).wait())
        ctx.arguments = arguments
        ctx.shapes = [tensor.shape for tensor in tensors]
        others = [result for result in results if not result.is_floating_point()]
        ctx.mark_non_differentiable(*others)
        # Not among the tensors that torch saves: it frees those after the first
        # backward pass, and a program may start one from each result in turn.
        ctx.others = [other.clone() for other in others]
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gradients = gradients_of(
            ctx.arguments, _FUNCTIONS, grads, ctx.shapes, ctx.others
        )
        return None, *gradients


def _padded(grad: Tensor, shape: torch.Size) -> Tensor:
    if grad.shape == shape:
        return grad
    whole = grad.new_zeros(shape)
    whole[: len(grad)] = grad
    return whole


# In place of the inputs they take shapes: backward() needs no more of them.
_FUNCTIONS = GradientFunctions(
    call=lambda arguments, tensors: TORCH_CALLS.begin(
        arguments, tensors, now=True
    ).wait(),
    lengths=lambda shapes: torch.tensor([[shape[0] for shape in shapes]]),
    add_rows=lambda tensor: tensor.sum(0),
    zeros=torch.zeros_like,
    padded=_padded,
    without_gradient="tensor.detach()",
)
