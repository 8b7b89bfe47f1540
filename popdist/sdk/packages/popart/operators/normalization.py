"""Operators that normalise, softmax among them, and dropout."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .call import Call, Form, Operator


def _along_rows(function: Callable[[Tensor], Tensor]) -> Operator:
    """Return an operator on rows: all dimensions from an axis on are one row."""

    def convert(x: Tensor, axis: int) -> Tensor:
        return function(x.flatten(axis)).reshape(x.shape) if x.dim() else x

    return Operator.of(convert)


def _hard_max(rows: Tensor) -> Tensor:
    best = rows.argmax(-1, keepdim=True)
    return torch.zeros_like(rows).scatter(-1, best, 1.0)


def _statistics_refusal(form: Form) -> str:
    if form.outputs in (1, 5):
        return ""
    return (
        "has 5 outputs when it keeps running statistics, and 1 when it uses them, not "
        f"{form.outputs}. Give it num_outputs=5 or 1."
    )


def _batch_normalise(
    *tensors: Tensor, epsilon: float, momentum: float, call: Call
) -> Sequence[Tensor]:
    x, scale, bias, mean, variance = tensors
    if not call.training or call.outputs == 1:
        return [F.batch_norm(x, mean, variance, scale, bias, eps=epsilon)]
    y = F.batch_norm(x, None, None, scale, bias, training=True, eps=epsilon)
    values = x.detach().transpose(0, 1).flatten(1).float()
    new_mean, new_variance = values.mean(1), values.var(1, correction=0)
    count = values.shape[1]
    unbiased = new_variance * (count / max(count - 1, 1))
    return [
        y,
        (momentum * mean + (1 - momentum) * new_mean).to(mean.dtype),
        (momentum * variance + (1 - momentum) * unbiased).to(variance.dtype),
        new_mean.to(mean.dtype),
        new_variance.to(variance.dtype),
    ]


def _group_normalise(
    x: Tensor, scale: Tensor, bias: Tensor, num_groups: int, epsilon: float
) -> Sequence[Tensor]:
    y = F.group_norm(x, num_groups, scale, bias, epsilon)
    values = x.detach().reshape(x.shape[0] * num_groups, -1).float()
    mean, variance = values.mean(1), values.var(1, correction=0)
    return [y, mean, torch.rsqrt(variance + epsilon)]


def _norm(x: Tensor, axis: int, p: int) -> Tensor:
    if p == 1:
        return x / x.abs().sum(axis, keepdim=True)
    return x / (x * x).sum(axis, keepdim=True).sqrt()


def _mean_variance(x: Tensor, axes: list[int]) -> Tensor:
    centred = x - x.mean(axes, keepdim=True)
    return centred / ((centred * centred).mean(axes, keepdim=True).sqrt() + 1e-9)


def _drop(
    x: Tensor, ratio: float, shape: Sequence[int] | None = None, *, call: Call
) -> Sequence[Tensor]:
    """Return the tensor without some elements, and which remain.

    With a shape, whole slices are dropped: the mask is broadcast.
    """
    if not call.training or call.for_shapes:
        return [x.clone(), torch.ones_like(x, dtype=torch.bool)][: call.outputs]
    mask = torch.rand(shape or x.shape) >= ratio
    return [x * mask / (1 - ratio), mask][: call.outputs]


ONNX = {
    "BatchNormalization": Operator.of(_batch_normalise, refusal=_statistics_refusal),
    "Dropout": Operator.of(_drop),
    "Hardmax": _along_rows(_hard_max),
    "InstanceNormalization": Operator.of(
        lambda x, scale, bias, epsilon: F.instance_norm(
            x, weight=scale, bias=bias, eps=epsilon
        )
    ),
    "LRN": Operator.of(
        lambda x, size, alpha, beta, bias: F.local_response_norm(
            x, size, alpha, beta, bias
        )
    ),
    "LogSoftmax": _along_rows(lambda rows: rows.log_softmax(-1)),
    "LpNormalization": Operator.of(_norm),
    "MeanVarianceNormalization": Operator.of(_mean_variance),
    "Softmax": _along_rows(lambda rows: rows.softmax(-1)),
}
GRAPHCORE = {
    "GroupNormalization": Operator.of(_group_normalise),
    "ShapedDropout": Operator.of(_drop),
}
