"""float16 on the CPU: stored in 16 bits, products and convolutions in float32.

An IPU does the same with its partials. torch's own float16 convolutions take 50 times
as long on a CPU.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten
# What is slow or missing in float16, and gains from partial sums in float32.
_COMPUTED_IN_FLOAT32 = frozenset(
    getattr(getattr(_ATEN, name), overload)
    for name, overload in (
        ("addbmm", "default"),
        ("addmm", "default"),
        ("addmv", "default"),
        ("baddbmm", "default"),
        ("bmm", "default"),
        ("convolution", "default"),
        ("convolution_backward", "default"),
        ("dot", "default"),
        ("mm", "default"),
        ("mv", "default"),
        ("_scaled_dot_product_flash_attention_for_cpu", "default"),
        ("_scaled_dot_product_flash_attention_for_cpu_backward", "default"),
        ("_thnn_fused_lstm_cell", "default"),
        ("_ctc_loss", "default"),
        ("_ctc_loss_backward", "default"),
    )
    if hasattr(getattr(_ATEN, name, None), overload)
)


class HalfPrecision(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes the products of float16 tensors in float32 while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # Any: torch calls this with and for whatever its operators take.
        kwargs = kwargs or {}
        if func not in _COMPUTED_IN_FLOAT32 or not any(map(_is_half, args)):
            return func(*args, **kwargs)
        wide_kwargs = {name: _widened(value) for name, value in kwargs.items()}
        result = func(*map(_widened, args), **wide_kwargs)
        if isinstance(result, torch.Tensor):
            return result.half()
        return tuple(
            one.half()
            if isinstance(one, torch.Tensor) and one.dtype is torch.float32
            else one
            for one in result
        )


def _is_half(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.float16


# Any: whatever torch's operators take.
def _widened(value: Any) -> Any:
    return value.float() if _is_half(value) else value
