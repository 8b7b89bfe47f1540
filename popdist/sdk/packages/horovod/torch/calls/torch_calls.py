"""Requests of calls with torch's tensors."""

from functools import cache

import torch
from torch import Tensor

from popdist.torch.tensor_rows import TORCH, check

from ...common.calls.library import TensorLibrary
from ...common.calls.submission import TensorCalls


@cache
def _name_of_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _scale(source: Tensor, factor: float, target: Tensor) -> None:
    if source.is_floating_point():
        torch.mul(source, factor, out=target)
    else:
        target.copy_(source.double() * factor)


def _divide(target: Tensor, divisor: int) -> None:
    target.div_(divisor, rounding_mode="trunc")


TORCH_CALLS = TensorCalls(
    TensorLibrary(
        framework=TORCH,
        check=lambda tensors: check(*tensors),
        name_of=lambda tensor: _name_of_dtype(tensor.dtype),
        new=lambda shape, like: torch.empty(tuple(shape), dtype=like.dtype),
        new_like=lambda tensors: [torch.empty_like(tensor) for tensor in tensors],
        scale=_scale,
        divide=_divide,
        doubles=Tensor.double,
        int32=lambda numbers: torch.tensor(numbers, dtype=torch.int32),
    )
)
