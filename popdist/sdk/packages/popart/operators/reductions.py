"""Operators that reduce or sort dimensions, and matrix products."""

from collections.abc import Callable

import torch

from .call import Call, Operator, axis_of


def _axes(call: Call) -> list[int]:
    """Return the dimensions to reduce: all, unless the node names some."""
    axes = call.get("axes")
    return list(range(call[0].dim())) if axes is None else list(axes)


def _reduction(
    function: Callable[[torch.Tensor, list[int], bool], torch.Tensor],
) -> Operator:
    def convert(call: Call) -> torch.Tensor:
        axes = _axes(call)
        if not axes:
            return function(call[0][None], [0], False)
        return function(call[0], axes, bool(call.get("keepdims", 1)))

    return Operator(convert)


def _product(x: torch.Tensor, axes: list[int], keep: bool) -> torch.Tensor:
    for axis in sorted((axis % x.dim() for axis in axes), reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


def _square_sum(x: torch.Tensor, axes: list[int], keep: bool) -> torch.Tensor:
    return (x * x).sum(axes, keepdim=keep)


def _median(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the lower median, and its index among the elements that are reduced."""
    x, axes = call[0], [axis % call[0].dim() for axis in _axes(call)]
    remaining = [axis for axis in range(x.dim()) if axis not in axes]
    flat = x.permute(*remaining, *axes).reshape(
        *(x.shape[axis] for axis in remaining), -1
    )
    values, indices = flat.median(-1)
    if call.get("keepdims"):
        shape = [1 if axis in axes else x.shape[axis] for axis in range(x.dim())]
        values, indices = values.reshape(shape), indices.reshape(shape)
    return values, indices.to(torch.int32)


def _arg_max(call: Call) -> torch.Tensor:
    return call[0].argmax(axis_of(call), keepdim=bool(call.get("keepdims")))


def _arg_min(call: Call) -> torch.Tensor:
    return call[0].argmin(axis_of(call), keepdim=bool(call.get("keepdims")))


def _cumulative_sum(call: Call) -> torch.Tensor:
    x, axis = call[0], int(call[1].item())
    if call.get("reverse"):
        x = x.flip(axis)
    total = x.cumsum(axis)
    if call.get("exclusive"):
        total = total - x
    return total.flip(axis) if call.get("reverse") else total


def _top_k(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    count = int(call[1].reshape(-1)[0].item()) if call.has(1) else call.get("k")
    largest = bool(call.get("largest", 1))
    values, indices = torch.sort(
        call[0], stable=True, dim=axis_of(call), descending=largest
    )
    axis = axis_of(call)
    return values.narrow(axis, 0, count), indices.narrow(axis, 0, count)


def _general_product(call: Call) -> torch.Tensor:
    a, b = call[0], call[1]
    a = a.t() if call.get("transA") else a
    b = b.t() if call.get("transB") else b
    product: torch.Tensor = (a @ b) * call.get("alpha")
    if call.has(2):
        product = product + call[2] * call.get("beta")
    return product


ONNX = {
    "ArgMax": Operator(_arg_max),
    "ArgMin": Operator(_arg_min),
    "CumSum": Operator(_cumulative_sum, (1,)),
    "Gemm": Operator(_general_product),
    "MatMul": Operator.of(torch.matmul),
    "ReduceL1": _reduction(lambda x, axes, keep: x.abs().sum(axes, keepdim=keep)),
    "ReduceL2": _reduction(lambda x, axes, keep: _square_sum(x, axes, keep).sqrt()),
    "ReduceLogSum": _reduction(lambda x, axes, keep: x.sum(axes, keepdim=keep).log()),
    "ReduceLogSumExp": _reduction(
        lambda x, axes, keep: x.logsumexp(axes, keepdim=keep)
    ),
    "ReduceMax": _reduction(lambda x, axes, keep: x.amax(axes, keepdim=keep)),
    "ReduceMean": _reduction(lambda x, axes, keep: x.mean(axes, keepdim=keep)),
    "ReduceMin": _reduction(lambda x, axes, keep: x.amin(axes, keepdim=keep)),
    "ReduceProd": _reduction(_product),
    "ReduceSum": _reduction(lambda x, axes, keep: x.sum(axes, keepdim=keep)),
    "ReduceSumSquare": _reduction(_square_sum),
    "TopK": Operator(_top_k, (1,)),
}
GRAPHCORE = {"ReduceMedian": Operator(_median)}
