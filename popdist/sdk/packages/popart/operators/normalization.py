"""Operators that normalise, softmax among them, and dropout."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from .call import Call, Form, Operator, axis_of


def _along_rows(function: Callable[[torch.Tensor], torch.Tensor]) -> Operator:
    """Return an operator on rows: all dimensions from an axis on are one row."""

    def convert(call: Call) -> torch.Tensor:
        x, axis = call[0], axis_of(call, default=1)
        return function(x.flatten(axis)).reshape(x.shape) if x.dim() else x

    return Operator(convert)


def _hard_max(rows: torch.Tensor) -> torch.Tensor:
    best = rows.argmax(-1, keepdim=True)
    return torch.zeros_like(rows).scatter(-1, best, 1.0)


def _statistics_refusal(form: Form) -> str:
    if form.outputs in (1, 5):
        return ""
    return (
        "has 5 outputs when it keeps running statistics, and 1 when it uses them, not "
        f"{form.outputs}. Give it num_outputs=5 or 1."
    )


def _batch_normalise(call: Call) -> Sequence[torch.Tensor]:
    x, scale, bias, mean, variance = (call[i] for i in range(5))
    epsilon = call.get("epsilon")
    if not call.training or call.outputs == 1:
        return [F.batch_norm(x, mean, variance, scale, bias, eps=epsilon)]
    y = F.batch_norm(x, None, None, scale, bias, training=True, eps=epsilon)
    values = x.detach().transpose(0, 1).flatten(1).float()
    new_mean, new_variance = values.mean(1), values.var(1, correction=0)
    count = values.shape[1]
    unbiased = new_variance * (count / max(count - 1, 1))
    keep = call.get("momentum")
    return [
        y,
        (keep * mean + (1 - keep) * new_mean).to(mean.dtype),
        (keep * variance + (1 - keep) * unbiased).to(variance.dtype),
        new_mean.to(mean.dtype),
        new_variance.to(variance.dtype),
    ]


def _instance_normalise(call: Call) -> torch.Tensor:
    return F.instance_norm(
        call[0], weight=call[1], bias=call[2], eps=call.get("epsilon")
    )


def _group_normalise(call: Call) -> Sequence[torch.Tensor]:
    x, groups, epsilon = call[0], call.get("num_groups"), call.get("epsilon")
    y = F.group_norm(x, groups, call[1], call[2], epsilon)
    values = x.detach().reshape(x.shape[0] * groups, -1).float()
    mean, variance = values.mean(1), values.var(1, correction=0)
    return [y, mean, torch.rsqrt(variance + epsilon)]


def _local_response(call: Call) -> torch.Tensor:
    return F.local_response_norm(
        call[0], call.get("size"), call.get("alpha"), call.get("beta"), call.get("bias")
    )


def _norm(call: Call) -> torch.Tensor:
    x, axis = call[0], axis_of(call, default=-1)
    if call.get("p") == 1:
        return x / x.abs().sum(axis, keepdim=True)
    return x / (x * x).sum(axis, keepdim=True).sqrt()


def _mean_variance(call: Call) -> torch.Tensor:
    x, axes = call[0], call.get("axes")
    centred = x - x.mean(axes, keepdim=True)
    return centred / ((centred * centred).mean(axes, keepdim=True).sqrt() + 1e-9)


def _drop(call: Call) -> Sequence[torch.Tensor]:
    x, ratio = call[0], call.get("ratio")
    if not call.training or call.for_shapes:
        return [x.clone(), torch.ones_like(x, dtype=torch.bool)][: call.outputs]
    mask = torch.rand(x.shape) >= ratio
    return [x * mask / (1 - ratio), mask][: call.outputs]


def _drop_shaped(call: Call) -> torch.Tensor:
    x, ratio = call[0], float(call.get("ratio"))
    if not call.training or call.for_shapes:
        return x.clone()
    mask = torch.rand(call.get("shape")) >= ratio
    return x * mask / (1 - ratio)


ONNX = {
    "BatchNormalization": Operator(_batch_normalise, refusal=_statistics_refusal),
    "Dropout": Operator(_drop),
    "Hardmax": _along_rows(_hard_max),
    "InstanceNormalization": Operator(_instance_normalise),
    "LRN": Operator(_local_response),
    "LogSoftmax": _along_rows(lambda rows: rows.log_softmax(-1)),
    "LpNormalization": Operator(_norm),
    "MeanVarianceNormalization": Operator(_mean_variance),
    "Softmax": _along_rows(lambda rows: rows.softmax(-1)),
}
GRAPHCORE = {
    "GroupNormalization": Operator(_group_normalise),
    "ShapedDropout": Operator(_drop_shaped),
}
