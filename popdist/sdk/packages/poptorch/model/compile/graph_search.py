"""What compiling looks for in the operations of a forward pass.

The first that yields int64, which an IPU has as int32; and those before all blocks.
"""

import sys
from collections.abc import Sequence
from itertools import count
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from ..._logging import warn_as_backend
from ...execution import Execution

_NAMES = {torch.float16: "Half", torch.float32: "Float", torch.int64: "Long"}
# Their int64 results are needed for the backward pass only.
_INTERNAL = "_with_indices"
# How often there was something to warn of.
_CALLS = count()


class GraphSearch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at all operations of a forward pass while it is active."""

    def __init__(self, execution: Execution) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._execution = execution
        self._first: str | None = None
        # The numbers that tensors have in the graph, and how many values that has.
        self._numbers = WeakIdKeyDictionary()
        self._values = count()

    # Any: torch calls this with and for whatever its operators take.
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self._execution.blocks:
            self._execution.computes_before_blocks = True
        if self._first is None:
            given = [*args, *(kwargs or {}).values()]
            # torch leaves out arguments with their default value.
            given += [None] * (len(func._schema.arguments) - len(given))
            arguments = [self._label(argument) for argument in given]
            is_differentiable = torch.is_grad_enabled() and any(
                isinstance(leaf, torch.Tensor) and leaf.requires_grad
                for leaf in tree_leaves(given)
            )
            results = self._described(result, is_differentiable)
            if _yields_int64(func, result):
                call = f"{func._schema.name}({', '.join(arguments)})"
                self._first = f"{results} = {call} # {_place_of_caller()}"
        return result

    # Any: whatever the model's forward returns.
    def int64(self, output: Any) -> str | None:
        """Return the first that yields int64 and its place in the program, or None."""
        if self._first is None and _has_int64(output):
            return f"{self._described(output)} = return"
        return self._first

    def _label(self, value: object) -> str:
        """Return the name of a value in the graph, which may be new there."""
        if not isinstance(value, torch.Tensor):
            return f"%{next(self._values)}"
        if value not in self._numbers:
            self._numbers[value] = next(self._values)
        return f"%{self._numbers[value]}"

    def _described(self, value: Any, is_differentiable: bool = False) -> str:
        """Return the names, types and shapes of tensors, as torch shows a graph."""
        texts = []
        for tensor in tree_leaves(value):
            if isinstance(tensor, torch.Tensor):
                # Results get requires_grad after the operation.
                is_trained = tensor.requires_grad or (
                    is_differentiable and tensor.is_floating_point()
                )
                shape = [*map(str, tensor.shape)]
                shape += [f"strides={list(tensor.stride())}"] if shape else []
                shape += [f"requires_grad={is_trained:d}", f"device={tensor.device}"]
                dtype = _NAMES.get(tensor.dtype, str(tensor.dtype))
                texts.append(f"{self._label(tensor)} : {dtype}({', '.join(shape)})")
        return ", ".join(texts)


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
    """Return file, line and column of the program's own line that is running."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        module = frame.f_globals.get("__name__", "").split(".")[0]
        if module not in ("torch", "poptorch"):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}:0"
        frame = frame.f_back
    return "?"


def warn_of_int64(operation: str | None) -> None:
    """Warn that an operation yields int64, in each process the first time only."""
    if operation is not None and next(_CALLS) == 0:
        warn_as_backend(
            f"{operation}: torch.int64 is not supported natively on IPU, loss of "
            "range/precision may occur. We will only warn on the first instance."
        )
