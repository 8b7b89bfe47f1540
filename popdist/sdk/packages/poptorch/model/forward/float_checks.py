"""Floating-point exceptions: an operation that yields infinity or no number raises."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...errors import Error

# Operators that write a given number, or no numbers yet.
_WRITING = ("empty", "fill", "full", "new_empty", "set_", "resize")


class FloatChecks(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises Error where an operation on numbers alone yields others."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:  # Any: torch calls this with and for whatever its operators take.
        kwargs = kwargs or {}
        name = func._schema.name
        checked = not any(word in name for word in _WRITING)
        # Before the call, which may change them.
        checked = checked and _all(torch.isfinite, (args, kwargs))
        result = func(*args, **kwargs)
        if checked and not _all(torch.isfinite, result):
            numbers = _all(lambda tensor: ~torch.isnan(tensor), result)
            kind = "infinity" if numbers else "no number (NaN)"
            raise Error(
                f"A floating-point exception: {name} yields {kind}, but its inputs are "
                "numbers. Change the model, or do without "
                "poptorch.Options().Precision.enableFloatingPointExceptions(True)."
            )
        return result


def _all(check: Callable[[torch.Tensor], torch.Tensor], value: Any) -> bool:
    """Return whether a check holds for all elements of all tensors."""
    return all(
        bool(check(leaf).all())
        for leaf in tree_leaves(value)
        if isinstance(leaf, torch.Tensor)
        and leaf.is_floating_point()
        and leaf.layout is torch.strided
    )
