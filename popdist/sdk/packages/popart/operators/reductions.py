"""Operators that reduce or sort dimensions, and matrix products."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .call import Operator


def _reduction(function: Callable[..., Tensor]) -> Operator:
    """Return an operator that reduces dimensions: all, unless the node names some.

    Args:
        function: Takes a tensor, the axes, and whether they stay, as of size 1.
    """

    def convert(
        x: Tensor, axes: Sequence[int] | None = None, keepdims: int = 1
    ) -> Tensor:
        chosen = list(range(x.dim())) if axes is None else list(axes)
        if not chosen:
            return function(x[None], [0], False)
        return function(x, chosen, bool(keepdims))

    return Operator.of(convert)


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted((axis % x.dim() for axis in axes), reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


def _median(
    x: Tensor, axes: Sequence[int] | None = None, keepdims: int = 1
) -> tuple[Tensor, Tensor]:
    """Return the lower median, and its index among the elements that are reduced."""
    rank = x.dim()
    chosen = [axis % rank for axis in (range(rank) if axes is None else axes)]
    remaining = [axis for axis in range(rank) if axis not in chosen]
    rows = [x.shape[axis] for axis in remaining]
    values, indices = x.permute(*remaining, *chosen).reshape(*rows, -1).median(-1)
    if keepdims:
        shape = [1 if axis in chosen else x.shape[axis] for axis in range(rank)]
        values, indices = values.reshape(shape), indices.reshape(shape)
    return values, indices.to(torch.int32)


def _cumulative_sum(x: Tensor, axis: Tensor, exclusive: int, reverse: int) -> Tensor:
    dim = int(axis.item())
    x = x.flip(dim) if reverse else x
    total = x.cumsum(dim) - x if exclusive else x.cumsum(dim)
    return total.flip(dim) if reverse else total


def _top_k(
    x: Tensor, k: Tensor | int, axis: int, largest: int = 1
) -> tuple[Tensor, Tensor]:
    values, indices = torch.sort(x, stable=True, dim=axis, descending=bool(largest))
    return values.narrow(axis, 0, int(k)), indices.narrow(axis, 0, int(k))


def _general_product(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float,
    beta: float,
    transA: int,
    transB: int,
) -> Tensor:
    product: Tensor = alpha * ((a.t() if transA else a) @ (b.t() if transB else b))
    return product if c is None else product + c * beta


ONNX = {
    "ArgMax": Operator.of(lambda x, axis, keepdims: x.argmax(axis, bool(keepdims))),
    "ArgMin": Operator.of(lambda x, axis, keepdims: x.argmin(axis, bool(keepdims))),
    "CumSum": Operator.of(_cumulative_sum, (1,)),
    "Gemm": Operator.of(_general_product),
    "MatMul": Operator.of(torch.matmul),
    "ReduceL1": _reduction(lambda x, *how: x.abs().sum(*how)),
    "ReduceL2": _reduction(lambda x, *how: (x * x).sum(*how).sqrt()),
    "ReduceLogSum": _reduction(lambda x, *how: x.sum(*how).log()),
    "ReduceLogSumExp": _reduction(torch.logsumexp),
    "ReduceMax": _reduction(torch.amax),
    "ReduceMean": _reduction(torch.mean),
    "ReduceMin": _reduction(torch.amin),
    "ReduceProd": _reduction(_product),
    "ReduceSum": _reduction(torch.sum),
    "ReduceSumSquare": _reduction(lambda x, *how: (x * x).sum(*how)),
    "TopK": Operator.of(_top_k, (1,)),
}
GRAPHCORE = {"ReduceMedian": Operator.of(_median)}
