"""torch.ops.poptorch: the operators that PopTorch registers, computed on the CPU.

PopTorch's functions call them, and so do programs: for scopes that open in one hook and
close in another. Any: operators take values of many types, and torch.library has no
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


def _do_nothing(*_: object) -> None:
    """Do nothing: the annotation is for an IPU's compiler."""


def _first(tensor: torch.Tensor, *_: Any) -> torch.Tensor:
    """Return the tensor: the annotation is for an IPU's compiler."""
    return tensor


def _refusal(name: str, instead: str) -> Callable[..., Any]:
    def refuse(*_: object) -> None:
        raise Error(
            f"torch.ops.poptorch.{name} cannot be emulated: it builds a graph for an "
            f"IPU. {instead}"
        )

    return refuse


def _print_tensor(tensor: torch.Tensor, title: Any, *layout: Any) -> torch.Tensor:
    return ops.ipu_print_tensor(tensor, title or "", *layout)


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
    execution = current()
    if execution is not None:
        execution.regions.enter(enabled)


def _leave_autocast() -> None:
    execution = current()
    if execution is not None and execution.regions.depth > 1:
        execution.regions.leave()


_COND = "Call poptorch.cond(), which takes both branches as functions."
_CPU = "Call a poptorch.CPU(), which takes the function."

# Schemas with their functions, or with advice if there is no emulation.
_OPERATORS: tuple[tuple[str, Callable[..., Any] | str], ...] = (
    ("begin_autocast() -> ()", lambda: _enter_autocast(True)),
    ("suppress_autocast() -> ()", lambda: _enter_autocast(False)),
    ("end_autocast() -> ()", _leave_autocast),
    ("restore_autocast() -> ()", _leave_autocast),
    ("begin_ipu_block(int stage_id, int phase_id, int ipu_id) -> ()", begin_stage),
    ("end_ipu_block() -> ()", _do_nothing),
    (
        "ipu_print_tensor(Tensor self, str? title=None, bool print_gradient=True, "
        "int summarise_threshold=1000, int edge_items=3, int max_line_width=80, "
        "int digits=4) -> Tensor",
        _print_tensor,
    ),
    ("internal_cast(Tensor self, str dtype) -> Tensor", _cast),
    ("nop(Tensor self) -> Tensor", _first),
    (
        "dynamic_slice(Tensor self, int dim, Tensor start, int size, int step) "
        "-> Tensor",
        ops.dynamic_slice,
    ),
    (
        "dynamic_update(Tensor self, Tensor src, int dim, Tensor start, int size) "
        "-> Tensor",
        ops.dynamic_update,
    ),
    (
        "custom_operation(Tensor[] inputs, str name, str domain, int domain_version, "
        "int num_outputs, Tensor[] outputs, str attributes) -> Tensor[]",
        custom_ops.custom_operation,
    ),
    (
        "ctc_beam_search_decoder(Tensor probs, Tensor lengths, int blank, "
        "int beam_width, int top_paths) -> (Tensor, Tensor, Tensor)",
        ctc_beam_search_decoder,
    ),
    ("identity_loss(Tensor x, int reduction) -> Tensor", ops.identity_loss),
    ("start_for_loop(Tensor[] inputs) -> ()", _do_nothing),
    (
        "end_for_loop(Tensor[] outputs, Tensor[] inputs, int trip_count) -> Tensor[]",
        _end_loop,
    ),
    ("start_if_block(Tensor condition) -> ()", _COND),
    ("start_else_block(Tensor[] outputs) -> ()", _COND),
    ("end_if_block(Tensor[] outputs, Tensor condition) -> Tensor[]", _COND),
    ("optimizer_group(int group, Tensor[] inputs) -> ()", _do_nothing),
    (
        "set_matmul_serialization(Tensor matmul, str mode, int factor, "
        "bool keep_precision) -> Tensor",
        _first,
    ),
    ("set_overlap_for_input(Tensor t, str mode) -> Tensor", _first),
    ("set_overlap_for_output(Tensor t, str mode) -> Tensor", _first),
    ("recomputation_checkpoint(Tensor self) -> Tensor", _first),
    ("set_available_memory(Tensor t, float mem) -> Tensor", ops.set_available_memory),
    ("begin_multi_conv() -> ()", _do_nothing),
    (
        "end_multi_conv(float[]? available_memory_proportions, int[]? partials_types, "
        "int? plan_type, int? per_conv_reserved_tiles, float? cycle_back_off, "
        "int[]? enableConvDithering) -> ()",
        _do_nothing,
    ),
    ("push_name_scope(str name) -> ()", _do_nothing),
    ("pop_name_scope() -> ()", _do_nothing),
    ("call_cpu_op(Tensor[] inputs, str name) -> ()", _CPU),
    ("end_cpu_op(Tensor[] output) -> Tensor[]", _CPU),
    ("set_attribute(str attribute, str key, str value) -> ()", _do_nothing),
    ("clear_attribute(str attribute, str key) -> ()", _do_nothing),
)


def _register() -> Any:
    library_class: Any = torch.library.Library
    library = library_class("poptorch", "DEF")
    for schema, function in _OPERATORS:
        name = library.define(schema).split("::")[-1]
        if isinstance(function, str):
            function = _refusal(name, function)
        # Its gradient is the called function's.
        library.impl(name, function, "CompositeImplicitAutograd")
    return library


# It takes its operators along when it is freed.
LIBRARY = _register()
