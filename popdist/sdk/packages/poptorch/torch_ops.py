"""torch.ops.poptorch: the operators that PopTorch registers, computed on the CPU.

PopTorch's functions call them, and so do programs: for scopes that open in one hook and
close in another. They are plain functions of Python here. Any: they take values of many
types.
"""

from collections.abc import Callable
from typing import Any

import torch

from . import custom_ops, ops
from .annotations import begin_stage
from .ctc import ctc_beam_search_decoder
from .errors import Error
from .execution import current

_DTYPES = {
    "BOOL": torch.bool,
    "INT32": torch.int32,
    "FLOAT": torch.float32,
    "FLOAT32": torch.float32,
    "FLOAT16": torch.float16,
}


def _do_nothing(*_: object, **__: object) -> None:
    """Do nothing: the annotation is for an IPU's compiler."""


def _first(tensor: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
    """Return the tensor: the annotation is for an IPU's compiler."""
    return tensor


def _refusal(name: str, instead: str) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> None:
        raise Error(
            f"torch.ops.poptorch.{name} cannot be emulated: it builds a graph for an "
            f"IPU. {instead}"
        )

    return refuse


def _cast(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    if dtype.upper() not in _DTYPES:
        raise Error(
            f"torch.ops.poptorch.internal_cast has no type {dtype!r}. Choose one of "
            f"{', '.join(_DTYPES)}."
        )
    return tensor.to(_DTYPES[dtype.upper()])


def _end_loop(
    outputs: list[torch.Tensor], inputs: list[torch.Tensor], count: int
) -> list[torch.Tensor]:
    if count != 1:
        raise Error(
            f"torch.ops.poptorch.end_for_loop cannot run {count} times what has run "
            "already. Call poptorch.for_loop(), which takes the body as a function."
        )
    return outputs


def _enter_autocast(enabled: bool) -> None:
    if execution := current():
        execution.regions.enter(enabled)


def _leave_autocast() -> None:
    execution = current()
    if execution is not None and execution.regions.depth > 1:
        execution.regions.leave()


_COND = "Call poptorch.cond(), which takes both branches as functions."
_CPU = "Call a poptorch.CPU(), which takes the function."
_WITHOUT_EFFECT = """
begin_multi_conv clear_attribute end_ipu_block end_multi_conv optimizer_group
pop_name_scope push_name_scope set_attribute start_for_loop
"""
_RETURNING_A_TENSOR = """
nop recomputation_checkpoint set_matmul_serialization set_overlap_for_input
set_overlap_for_output
"""
_REFUSED = {
    "start_if_block": _COND,
    "start_else_block": _COND,
    "end_if_block": _COND,
    "call_cpu_op": _CPU,
    "end_cpu_op": _CPU,
}
OPERATORS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(_WITHOUT_EFFECT.split(), _do_nothing),
    **dict.fromkeys(_RETURNING_A_TENSOR.split(), _first),
    **{name: _refusal(name, instead) for name, instead in _REFUSED.items()},
    "begin_autocast": lambda: _enter_autocast(True),
    "suppress_autocast": lambda: _enter_autocast(False),
    "end_autocast": _leave_autocast,
    "restore_autocast": _leave_autocast,
    "begin_ipu_block": begin_stage,
    "ctc_beam_search_decoder": ctc_beam_search_decoder,
    "custom_operation": custom_ops.custom_operation,
    "dynamic_slice": ops.dynamic_slice,
    "dynamic_update": ops.dynamic_update,
    "end_for_loop": _end_loop,
    "identity_loss": ops.identity_loss,
    "internal_cast": _cast,
    "ipu_print_tensor": ops.ipu_print_tensor,
    "set_available_memory": ops.set_available_memory,
}
for _name, _operator in OPERATORS.items():
    setattr(torch.ops.poptorch, _name, _operator)
