"""torch.ops.poptorch: the operators that PopTorch registers, computed on the CPU.

PopTorch's functions call them, and so do programs: for scopes that open in one hook and
close in another. They are functions of Python here, with the names of PopTorch's
parameters. Any: they take values of many types.
"""

from collections.abc import Callable
from inspect import Parameter, Signature, signature
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
# The names of PopTorch's parameters, for operators that have some.
_PARAMETERS = """
begin_ipu_block stage_id phase_id ipu_id
call_cpu_op inputs name
clear_attribute attribute key
ctc_beam_search_decoder probs lengths blank beam_width top_paths
custom_operation inputs name domain domain_version num_outputs outputs attributes
dynamic_slice self dim start size step
dynamic_update self src dim start size
end_cpu_op output
end_for_loop outputs inputs trip_count
end_if_block outputs condition
end_multi_conv available_memory_proportions partials_types plan_type
    per_conv_reserved_tiles cycle_back_off enableConvDithering
identity_loss x reduction
internal_cast self dtype
ipu_print_tensor self title print_gradient summarise_threshold edge_items
    max_line_width digits
nop self
optimizer_group group inputs
push_name_scope name
recomputation_checkpoint self
set_attribute attribute key value
set_available_memory t mem
set_matmul_serialization matmul mode factor keep_precision
set_overlap_for_input t mode
set_overlap_for_output t mode
start_else_block outputs
start_for_loop inputs
start_if_block condition
"""


def _add_operator(name: str, parameters: list[str]) -> None:
    """Add an operator to torch.ops.poptorch, with the defaults of its function."""
    function = OPERATORS[name]
    kind = Parameter.POSITIONAL_OR_KEYWORD
    own = signature(function).parameters.values()
    defaults = [each.default for each in own if each.kind == kind]
    # Functions that do nothing take *args.
    defaults += [Parameter.empty] * (len(parameters) - len(defaults))
    pairs = zip(parameters, defaults, strict=True)
    named = Signature([Parameter(each, kind, default=value) for each, value in pairs])

    def operator(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = named.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"torch.ops.poptorch.{name}() {error}") from None
        bound.apply_defaults()
        return function(*bound.args)

    operator.__name__ = operator.__qualname__ = name
    operator.__doc__ = function.__doc__
    # A registered operator without overloads has one named `default`.
    vars(operator).update(__signature__=named, default=operator)
    setattr(torch.ops.poptorch, name, operator)


# An indented line continues the line before.
_LINES = _PARAMETERS.strip().replace("\n    ", " ").splitlines()
_NAMES = {name: names for name, *names in map(str.split, _LINES)}
for _name in OPERATORS:
    _add_operator(_name, _NAMES.get(_name, []))
