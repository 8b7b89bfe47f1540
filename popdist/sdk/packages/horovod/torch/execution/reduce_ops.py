"""The operations by which tensors are reduced, and what they are to the engine."""

from dataclasses import dataclass
from enum import IntEnum
from functools import cache

import torch

from popdist.engine.spec.dtypes import DTYPES, REDUCTIONS
from popdist.torch.tensors.tensor_rows import CODES


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


@cache
def name_of_dtype(dtype: torch.dtype) -> str:
    """Return a dtype's name as the engine has it."""
    return str(dtype).removeprefix("torch.")


def check_reducible(dtype: torch.dtype, op: ReduceOp) -> None:
    """Raise an error unless tensors of this dtype can be reduced so.

    Raises:
        ValueError: There is no such reduction of this dtype.
        NotImplementedError: There is none in Adasum.
    """
    if dtype not in CODES:
        raise ValueError(
            f"A tensor of {dtype} cannot be reduced, only those of "
            f"{', '.join(DTYPES)}. Convert it first."
        )
    if dtype is torch.bool and op is Average:
        raise ValueError(
            "The average of bool tensors would not be bool. Use op=Sum, which is a "
            "logical or, or convert the tensor first."
        )
    if op is Adasum and not dtype.is_floating_point:
        raise NotImplementedError(
            f"Adasum needs tensors of floating point numbers, not {dtype}. "
            "Use op=Sum or op=Average."
        )


def engine_reduction(op: ReduceOp, is_float: bool) -> int:
    """Return the engine's code of a reduction of numbers with or without fractions.

    The average of integers is their sum, which is divided after that, and truncated.
    """
    return _ENGINE_CODES[Sum if op is Average and not is_float else op]


def neutral_value(op: ReduceOp, dtype: torch.dtype) -> float | int | bool:
    """Return what a rank that has joined contributes: it changes no result."""
    if op is Product:
        return 1
    if op not in (Min, Max):
        return 0
    if dtype is torch.bool:
        return op is Min
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    if dtype.is_floating_point:
        return float("inf") if op is Min else float("-inf")
    return limits.max if op is Min else limits.min
