"""Operators on elements, one by one."""

import math
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import popart_exception
from ..tensor_info import BY_NAME, BY_ONNX
from .call import Call, Operator, number


def _by_name(kinds: str) -> dict[str, Operator]:
    """Return operators that torch has functions for, named in small letters."""
    return {kind: Operator.of(getattr(torch, kind.lower())) for kind in kinds.split()}


def _divide(a: Tensor, b: Tensor) -> Tensor:
    if a.is_floating_point() or b.is_floating_point():
        return a / b
    return torch.div(a, b, rounding_mode="trunc")


def _shift(x: Tensor, by: Tensor, direction: str) -> Tensor:
    wide, bits = x.to(torch.int64), by.to(torch.int64)
    return (wide << bits if direction == "LEFT" else wide >> bits).to(x.dtype)


def _is_infinite(x: Tensor, detect_positive: int, detect_negative: int) -> Tensor:
    positive = torch.isposinf(x) & bool(detect_positive)
    return positive | torch.isneginf(x) & bool(detect_negative)


# The limits are attributes before version 11, and then inputs.
def _clip(
    x: Tensor, min: Tensor | float | None = None, max: Tensor | float | None = None
) -> Tensor:
    if min is not None:
        x = x.clamp(min=number(min))
    return x if max is None else x.clamp(max=number(max))


def _cast(x: Tensor, to: int) -> Tensor:
    if to not in BY_ONNX:
        raise popart_exception(
            f"Cast to the type {to} of ONNX is not available here. Choose one of "
            f"{', '.join(BY_NAME)}."
        )
    return x.to(BY_ONNX[to].torch)


def _selu(x: Tensor, alpha: float, gamma: float) -> Tensor:
    return torch.where(x > 0, x, torch.expm1(x) * alpha) * gamma


def _shrink(x: Tensor, bias: float, lambd: float) -> Tensor:
    zero = torch.zeros_like(x)
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, zero))


def _sum(*tensors: Tensor) -> Tensor:
    return reduce(torch.add, tensors)


def _print(x: Tensor, title: str = "", *, call: Call) -> Tensor:
    if not call.for_shapes:
        print(f"{title or 'Tensor'}: {x.detach().numpy()}")
    return x.clone()


ONNX = {
    **_by_name(
        "Abs Acos Acosh Add Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor IsNaN "
        "Log Mul Neg Reciprocal Relu Round Sigmoid Sign Sin Sinh Sqrt Sub Tan Tanh "
        "Where"
    ),
    "And": Operator.of(torch.logical_and),
    "BitShift": Operator.of(_shift),
    "Cast": Operator.of(_cast),
    "Clip": Operator.of(_clip, (1, 2)),
    "Div": Operator.of(_divide),
    "Elu": Operator.of(F.elu),
    "Equal": Operator.of(torch.eq),
    "Greater": Operator.of(torch.gt),
    "HardSigmoid": Operator.of(lambda x, alpha, beta: (x * alpha + beta).clamp(0, 1)),
    "Identity": Operator.of(torch.clone),
    "IsInf": Operator.of(_is_infinite),
    "LeakyRelu": Operator.of(lambda x, alpha: F.leaky_relu(x, alpha)),
    "Less": Operator.of(torch.lt),
    "Max": Operator.of(lambda *tensors: reduce(torch.maximum, tensors)),
    "Mean": Operator.of(lambda *tensors: _sum(*tensors) / len(tensors)),
    "Min": Operator.of(lambda *tensors: reduce(torch.minimum, tensors)),
    "Mod": Operator.of(
        lambda a, b, fmod: (torch.fmod if fmod else torch.remainder)(a, b)
    ),
    "Not": Operator.of(torch.logical_not),
    "Or": Operator.of(torch.logical_or),
    "PRelu": Operator.of(lambda x, slope: torch.where(x < 0, x * slope, x)),
    "Pow": Operator.of(lambda a, b: torch.pow(a, b).to(a.dtype)),
    "Selu": Operator.of(_selu),
    "Shrink": Operator.of(_shrink),
    "Softplus": Operator.of(lambda x: F.softplus(x, threshold=math.inf)),
    "Softsign": Operator.of(F.softsign),
    "Sum": Operator.of(_sum),
    # F.threshold() would keep NaN.
    "ThresholdedRelu": Operator.of(
        lambda x, alpha: torch.where(x > alpha, x, torch.zeros_like(x))
    ),
    "Xor": Operator.of(torch.logical_xor),
}
GRAPHCORE = {
    **_by_name("Atan2 Expm1 Fmod Log1p Remainder Round"),
    "BitwiseAnd": Operator.of(torch.bitwise_and),
    "BitwiseNot": Operator.of(torch.bitwise_not),
    "BitwiseOr": Operator.of(torch.bitwise_or),
    "BitwiseXnor": Operator.of(lambda a, b: torch.bitwise_not(torch.bitwise_xor(a, b))),
    "BitwiseXor": Operator.of(torch.bitwise_xor),
    "Detach": Operator.of(lambda x: x.detach().clone()),
    "Gelu": Operator.of(lambda x: F.gelu(x, approximate="tanh")),
    "IncrementMod": Operator.of(
        lambda x, increment, modulus: torch.fmod(x + increment, modulus)
    ),
    "Nop": Operator.of(torch.clone),
    "PrintTensor": Operator.of(_print),
    "Scale": Operator.of(lambda x, scale: x * scale),
    "ScaledAdd": Operator.of(lambda a, b, scale0, scale1: a * scale0 + b * scale1),
    "Swish": Operator.of(lambda x: x * torch.sigmoid(x)),
}
