"""Operators on elements, one by one."""

import math
from collections.abc import Sequence
from functools import reduce

import torch
import torch.nn.functional as F

from ..errors import popart_exception
from ..tensor_info import BY_NAME, BY_ONNX
from .call import Call, Operator


def _divide(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.is_floating_point() or b.is_floating_point():
        return a / b
    return torch.div(a, b, rounding_mode="trunc")


def _mod(call: Call) -> torch.Tensor:
    return (torch.fmod if call.get("fmod") else torch.remainder)(call[0], call[1])


def _power(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.pow(a, b).to(a.dtype)


def _shift(call: Call) -> torch.Tensor:
    left = call.get("direction") == "LEFT"
    wide, by = call[0].to(torch.int64), call[1].to(torch.int64)
    return (wide << by if left else wide >> by).to(call[0].dtype)


def _is_infinite(call: Call) -> torch.Tensor:
    x = call[0]
    infinite = torch.zeros_like(x, dtype=torch.bool)
    if call.get("detect_positive"):
        infinite = infinite | torch.isposinf(x)
    if call.get("detect_negative"):
        infinite = infinite | torch.isneginf(x)
    return infinite


def _clip(call: Call) -> torch.Tensor:
    low, high = call.get("min"), call.get("max")
    # Since version 11 they are inputs.
    if call.has(1):
        low = call[1].item()
    if call.has(2):
        high = call[2].item()
    x = call[0]
    if low is not None:
        x = x.clamp(min=low)
    return x if high is None else x.clamp(max=high)


def _cast(call: Call) -> torch.Tensor:
    kind = BY_ONNX.get(call.get("to"))
    if kind is None:
        raise popart_exception(
            f"Cast to the type {call.get('to')} of ONNX is not available here. Choose "
            f"one of {', '.join(BY_NAME)}."
        )
    return call[0].to(kind.torch)


def _hard_sigmoid(call: Call) -> torch.Tensor:
    line: torch.Tensor = call[0] * call.get("alpha") + call.get("beta")
    return line.clamp(0, 1)


def _selu(call: Call) -> torch.Tensor:
    x, alpha, gamma = call[0], float(call.get("alpha")), float(call.get("gamma"))
    return torch.where(x > 0, x, torch.expm1(x) * alpha) * gamma


def _elu(call: Call) -> torch.Tensor:
    return F.elu(call[0], call.get("alpha"))


def _leaky_relu(call: Call) -> torch.Tensor:
    return F.leaky_relu(call[0], call.get("alpha"))


def _thresholded_relu(call: Call) -> torch.Tensor:
    return torch.where(call[0] > call.get("alpha"), call[0], 0.0).to(call[0].dtype)


def _shrink(call: Call) -> torch.Tensor:
    x, bias, lambd = call[0], call.get("bias"), call.get("lambd")
    zero = torch.zeros_like(x)
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, zero))


def _parametric_relu(x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    return torch.where(x < 0, x * slope, x)


def _sum(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return reduce(torch.add, tensors)


def _gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


def _increment_modulo(call: Call) -> torch.Tensor:
    return torch.fmod(call[0] + call.get("increment"), call.get("modulus"))


def _scaled_add(call: Call) -> torch.Tensor:
    return call[0] * float(call.get("scale0")) + call[1] * float(call.get("scale1"))


def _print(call: Call) -> torch.Tensor:
    if not call.for_shapes:
        print(f"{call.get('title') or 'Tensor'}: {call[0].detach().numpy()}")
    return call[0].clone()


def _swish(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


ONNX = {
    "Abs": Operator.of(torch.abs),
    "Acos": Operator.of(torch.acos),
    "Acosh": Operator.of(torch.acosh),
    "Add": Operator.of(torch.add),
    "And": Operator.of(torch.logical_and),
    "Asin": Operator.of(torch.asin),
    "Asinh": Operator.of(torch.asinh),
    "Atan": Operator.of(torch.atan),
    "Atanh": Operator.of(torch.atanh),
    "BitShift": Operator(_shift),
    "Cast": Operator(_cast),
    "Ceil": Operator.of(torch.ceil),
    "Clip": Operator(_clip, (1, 2)),
    "Cos": Operator.of(torch.cos),
    "Cosh": Operator.of(torch.cosh),
    "Div": Operator.of(_divide),
    "Elu": Operator(_elu),
    "Equal": Operator.of(torch.eq),
    "Erf": Operator.of(torch.erf),
    "Exp": Operator.of(torch.exp),
    "Floor": Operator.of(torch.floor),
    "Greater": Operator.of(torch.gt),
    "HardSigmoid": Operator(_hard_sigmoid),
    "Identity": Operator.of(torch.clone),
    "IsInf": Operator(_is_infinite),
    "IsNaN": Operator.of(torch.isnan),
    "LeakyRelu": Operator(_leaky_relu),
    "Less": Operator.of(torch.lt),
    "Log": Operator.of(torch.log),
    "Max": Operator.of(lambda *tensors: reduce(torch.maximum, tensors)),
    "Mean": Operator.of(lambda *tensors: _sum(tensors) / len(tensors)),
    "Min": Operator.of(lambda *tensors: reduce(torch.minimum, tensors)),
    "Mod": Operator(_mod),
    "Mul": Operator.of(torch.mul),
    "Neg": Operator.of(torch.neg),
    "Not": Operator.of(torch.logical_not),
    "Or": Operator.of(torch.logical_or),
    "PRelu": Operator.of(_parametric_relu),
    "Pow": Operator.of(_power),
    "Reciprocal": Operator.of(torch.reciprocal),
    "Relu": Operator.of(torch.relu),
    "Round": Operator.of(torch.round),
    "Selu": Operator(_selu),
    "Shrink": Operator(_shrink),
    "Sigmoid": Operator.of(torch.sigmoid),
    "Sign": Operator.of(torch.sign),
    "Sin": Operator.of(torch.sin),
    "Sinh": Operator.of(torch.sinh),
    "Softplus": Operator.of(lambda x: F.softplus(x, threshold=math.inf)),
    "Softsign": Operator.of(F.softsign),
    "Sqrt": Operator.of(torch.sqrt),
    "Sub": Operator.of(torch.sub),
    "Sum": Operator.of(lambda *tensors: _sum(tensors)),
    "Tan": Operator.of(torch.tan),
    "Tanh": Operator.of(torch.tanh),
    "ThresholdedRelu": Operator(_thresholded_relu),
    "Where": Operator.of(torch.where),
    "Xor": Operator.of(torch.logical_xor),
}
GRAPHCORE = {
    "Atan2": Operator.of(torch.atan2),
    "BitwiseAnd": Operator.of(torch.bitwise_and),
    "BitwiseNot": Operator.of(torch.bitwise_not),
    "BitwiseOr": Operator.of(torch.bitwise_or),
    "BitwiseXnor": Operator.of(lambda a, b: torch.bitwise_not(torch.bitwise_xor(a, b))),
    "BitwiseXor": Operator.of(torch.bitwise_xor),
    "Detach": Operator.of(lambda x: x.detach().clone()),
    "Expm1": Operator.of(torch.expm1),
    "Fmod": Operator.of(torch.fmod),
    "Gelu": Operator.of(_gelu),
    "IncrementMod": Operator(_increment_modulo),
    "Log1p": Operator.of(torch.log1p),
    "Nop": Operator.of(torch.clone),
    "PrintTensor": Operator(_print),
    "Remainder": Operator.of(torch.remainder),
    "Round": Operator.of(torch.round),
    "Scale": Operator(lambda call: call[0] * call.get("scale")),
    "ScaledAdd": Operator(_scaled_add),
    "Swish": Operator.of(_swish),
}
