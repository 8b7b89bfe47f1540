"""The operations by which tensors are reduced, and what they are to the engine."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from popdist.engine.spec.dtypes import DTYPES, REDUCTIONS


class ReduceOp(IntEnum):
    """How allreduce and reducescatter combine the ranks' tensors."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


Average = ReduceOp.Average
Sum = ReduceOp.Sum
Adasum = ReduceOp.Adasum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product

_ENGINE_NAMES = {Sum: "sum", Average: "mean", Min: "min", Max: "max", Product: "prod"}
_ENGINE_CODES = {op: REDUCTIONS[name] for op, name in _ENGINE_NAMES.items()}
FLOATS = ("float16", "bfloat16", "float32", "float64")


def choose_op(op: int | None, average: bool | None) -> ReduceOp:
    """Return the operation that a call's arguments op and average ask for.

    Raises:
        ValueError: Both are given, or op is none of horovod's.
    """
    if op is not None and average is not None:
        raise ValueError(
            f"op={op!r} and average={average} are given, but average is the earlier "
            "name of the choice between op=Average and op=Sum. Give op alone."
        )
    if op is None:
        return Sum if average is False else Average
    try:
        return ReduceOp(op)
    except ValueError:
        names = ", ".join(known.name for known in ReduceOp)
        raise ValueError(f"op is {op!r}, but must be one of {names}.") from None


@dataclass(frozen=True, slots=True)
class Reduction:
    """An operation, and what tensors are multiplied with before and after it."""

    op: ReduceOp
    prescale: float = 1.0
    postscale: float = 1.0


def check_reducible(dtype: str, op: ReduceOp) -> None:
    """Raise an error unless tensors of the dtype of this name can be reduced so.

    Raises:
        ValueError: There is no such reduction of this dtype.
        NotImplementedError: There is none in Adasum.
    """
    if dtype not in DTYPES:
        raise ValueError(
            f"A tensor of {dtype} cannot be reduced, only tensors of "
            f"{', '.join(DTYPES)}. Convert it first."
        )
    if dtype == "bool" and op is Average:
        raise ValueError(
            "The average of bool tensors would not be bool. Use op=Sum, which is a "
            "logical or, or convert the tensor first."
        )
    if op is Adasum and dtype not in FLOATS:
        raise NotImplementedError(
            f"Adasum needs tensors of floating point numbers, not {dtype}. "
            "Use op=Sum or op=Average."
        )


def engine_reduction(op: ReduceOp, dtype: str) -> int:
    """Return the engine's code of a reduction of tensors of this dtype.

    The average of integers is their sum, which is divided after that, and truncated.
    """
    return _ENGINE_CODES[Sum if op is Average and dtype not in FLOATS else op]


# bfloat16's numbers, which numpy lacks.
_BFLOAT16_BITS = {Product: 0x3F80, Min: 0x7F80, Max: 0xFF80}


# Any: an array of whatever dtype.
def neutral_array(op: ReduceOp, dtype: str, count: int) -> np.ndarray[Any, Any]:
    """Return what a rank that has joined contributes: it changes no result."""
    if dtype == "bfloat16":
        return np.full(count, _BFLOAT16_BITS.get(op, 0), np.uint16)
    if op is Product:
        return np.ones(count, dtype)
    if op not in (Min, Max):
        return np.zeros(count, dtype)
    if dtype == "bool":
        return np.full(count, op is Min)
    if dtype in FLOATS:
        return np.full(count, np.inf if op is Min else -np.inf, dtype)
    limits = np.iinfo(dtype)
    return np.full(count, limits.max if op is Min else limits.min, dtype)
