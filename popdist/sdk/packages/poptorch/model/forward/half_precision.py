"""float16 on the CPU: stored in 16 bits, added up in float32, and clipped.

An IPU does the same: partial sums and statistics have 32 bits, and a number that
float16 has no place for becomes the largest one, not infinity. torch's own float16
convolutions take 50 times as long on a CPU.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from popdist.framework_names import TORCH

_ATEN = torch.ops.aten
LARGEST = torch.finfo(torch.float16).max

# Any: whatever torch's operators take and return, here and below.
_Handler = Callable[[Callable[..., Any], Sequence[Any], dict[str, Any]], Any]


def _overloads(names: str) -> frozenset[Callable[..., Any]]:
    """Return all overloads of the operators of these names.

    Raises:
        ImportError: torch has no operator of such a name.
    """
    for name in names.split():
        if not hasattr(_ATEN, name):
            failure = "float16 has other results than on an IPU"
            raise TORCH.missing(f"torch.ops.aten.{name}", failure)
    packets = [getattr(_ATEN, name) for name in names.split()]
    return frozenset(
        getattr(packet, overload)
        for packet in packets
        for overload in packet.overloads()
    )


# Operators that are slow or missing in float16, or that add up.
_COMPUTED_IN_FLOAT32 = _overloads(
    """
    addbmm addmm addmv baddbmm bmm convolution convolution_backward dot mm mv
    _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention_for_cpu_backward
    _thnn_fused_lstm_cell _ctc_loss _ctc_loss_backward
    cumprod cumsum index_put index_put_ _index_put_impl_ _unsafe_index_put
    native_layer_norm_backward nll_loss_forward nll_loss2d_forward prod
    """
)
# Operators with statistics beside their results. The statistics stay in float32.
_NORMS = _overloads(
    """
    native_batch_norm native_batch_norm_backward native_group_norm
    native_group_norm_backward native_layer_norm
    """
)
# Operators with results that are no larger than their inputs.
_BOUNDED = _overloads(
    """
    _adaptive_avg_pool2d avg_pool2d cat clone embedding empty empty_like empty_strided
    gather gelu index_select max_pool2d_with_indices mean new_empty new_zeros ones_like
    relu relu_ _reshape_alias sigmoid _softmax stack tanh threshold_backward
    _unsafe_view zeros zeros_like
    """
)
# Operators that refuse numbers above the largest float16.
_FILLING = _overloads(
    "constant_pad_nd fill fill_ full full_like masked_fill masked_fill_ new_full"
)


class HalfPrecision(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes float16 as an IPU does while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # Whether there was any.
        self.used = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = _handler_of(func)(func, args, kwargs or {})
        self.used = self.used or _is_half(result) or any(map(_is_half, args))
        return result


@cache
def _handler_of(func: Any) -> _Handler:
    """Return how an operator runs."""
    if func in _COMPUTED_IN_FLOAT32:
        return _run_in_float32
    if func in _NORMS:
        return _run_norm
    if func in _FILLING:
        return _run_filling
    returns = [result.alias_info for result in func._schema.returns]
    if func in _BOUNDED or (returns and all(_is_view(alias) for alias in returns)):
        return _run
    return _run_clipped if returns else _run_in_lists


def _is_view(alias: Any) -> bool:
    return alias is not None and not alias.is_write


def _run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return func(*args, **kwargs)


def _run_clipped(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run an operator, and clip its results, which may be its inputs."""
    return _clipped(func(*args, **kwargs))


def _run_in_lists(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run an operator that changes the tensors of its first argument."""
    result = func(*args, **kwargs)
    _clipped(args[:1])
    return result


def _run_filling(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Clip a number, and run the operator that writes it."""
    dtype = kwargs.get("dtype")
    half = any(map(_is_half, args)) if dtype is None else dtype is torch.float16
    if half:
        args = [
            min(max(arg, -LARGEST), LARGEST) if isinstance(arg, float | int) else arg
            for arg in args
        ]
    return _clipped(func(*args, **kwargs))


def _run_in_float32(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run an operator in float32, and round its results once."""
    if not any(map(_is_half, args)):
        return func(*args, **kwargs)
    wide = [_widened(arg) for arg in args]
    wide_kwargs = {name: _widened(value) for name, value in kwargs.items()}
    result = func(*wide, **wide_kwargs)
    if result is wide[0]:
        args[0].copy_(result)
        return _clipped(args[0])
    if kwargs.get("dtype") is not None:
        return result
    return _narrowed(result)


def _run_norm(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run a normalisation or its backward pass with statistics in float32.

    torch takes inputs of float16 beside weights of float32, without copying them.
    """
    names = [argument.name for argument in func._schema.arguments]
    arguments = dict(zip(names, args, strict=False)) | kwargs
    data = ("grad_out", "input", "X", "dY")
    if not any(_is_half(arguments.get(name)) for name in data):
        return func(*args, **kwargs)
    wide = {n: v if n in data else _widened(v) for n, v in arguments.items()}
    if not any(isinstance(v, torch.Tensor) for n, v in wide.items() if n not in data):
        wide = {name: _widened(value) for name, value in arguments.items()}
    result, *others = func(**wide)
    # Weights of float32 have gradients of it.
    backward = "output_mask" in names
    if backward and not _is_half(arguments.get("weight", arguments.get("gamma"))):
        return (_narrowed(result), *others)
    for name in ("running_mean", "running_var"):
        if not backward and _is_half(arguments.get(name)):
            _clipped(arguments[name].copy_(wide[name]))
    return (_narrowed(result), *(_narrowed(others) if backward else others))


def _narrowed(value: Any) -> Any:
    """Return a result with all of its float32 tensors rounded to float16."""
    if isinstance(value, torch.Tensor):
        return _clipped(value.half() if value.dtype is torch.float32 else value)
    if isinstance(value, list | tuple):
        return tuple(map(_narrowed, value))
    return value


def _clipped(value: Any) -> Any:
    """Clip all float16 tensors of a result in place, and return it."""
    if isinstance(value, torch.Tensor):
        if value.dtype is torch.float16 and value.layout is torch.strided:
            value.clamp_(-LARGEST, LARGEST)
    elif isinstance(value, list | tuple):
        for part in value:
            _clipped(part)
    return value


def _is_half(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.float16


def _widened(value: Any) -> Any:
    return value.float() if _is_half(value) else value
