"""The search of compiling through the operations of a forward pass.

It finds the first result of int64, which an IPU has as int32, and operations before all
blocks. Any: torch's operators take and return objects of all kinds.
"""

import sys
from collections.abc import Sequence
from itertools import count
from traceback import walk_stack
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..._logging import warn_as_backend
from ...execution import Execution

# Their int64 results are needed for the backward pass only.
_INTERNAL = "_with_indices"
# How often there was something to warn of.
_CALLS = count()


class GraphSearch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at all operations of a forward pass while it is active."""

    def __init__(self, execution: Execution) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._execution = execution
        # The first operation that yields int64, and its place in the program.
        self._first: str | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self._execution.blocks:
            self._execution.computes_before_blocks = True
        if self._first is None and _yields_int64(func, result):
            self._first = f"{func._schema.name} in {_place_of_caller()}"
        return result

    def int64(self, output: Any) -> str | None:
        """Return what yields int64 first: an operation, the model itself or None."""
        if self._first is None and _has_int64(output):
            return "The output of the model"
        return self._first


def _yields_int64(func: Any, result: Any) -> bool:
    """Return whether an operation makes new tensors of int64, not views or changes."""
    schema = func._schema
    return (
        _has_int64(result)
        and not schema.name.endswith(_INTERNAL)
        and not any(result.alias_info for result in schema.returns)
    )


def _has_int64(value: Any) -> bool:
    return any(
        isinstance(leaf, torch.Tensor) and leaf.dtype is torch.int64
        for leaf in tree_leaves(value)
    )


def _place_of_caller() -> str:
    """Return file and line of the program's own code that is running."""
    for frame, line in walk_stack(sys._getframe()):
        module = frame.f_globals.get("__name__", "").split(".")[0]
        if module not in ("torch", "poptorch"):
            return f"{frame.f_code.co_filename}:{line}"
    return "?"


def warn_of_int64(operation: str | None) -> None:
    """Warn that an operation yields int64, in each process the first time only."""
    if operation is not None and next(_CALLS) == 0:
        warn_as_backend(
            f"{operation}: torch.int64 is not supported natively on IPU, loss of "
            "range/precision may occur. We will only warn on the first instance."
        )
