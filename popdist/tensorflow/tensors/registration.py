"""Registers popdist's operations with TensorFlow, and adds them to graphs.

They are registered when this module is imported.
"""

import os
import traceback
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_library

from popdist.framework_names import TENSORFLOW
from popdist.tensorflow.tensors import _kernels
from popdist.tensorflow.tensors.memory import Tensor

# A function that an operation calls with its arguments: see _kernels.pyi. It returns
# what the operation results in, or None.
KernelFunction = Callable[..., list[tuple[Any, ...]] | None]

_LIBRARY = "libtensorflow_cc.so.2"


def _register_operations() -> None:
    """Register popdist's operations with TensorFlow.

    Raises:
        ImportError: Its C interface lacks a function that they need.
    """
    path = os.path.join(tf.sysconfig.get_lib(), _LIBRARY)
    try:
        _kernels.register_operations(path, _CALLS.carry_out)
    except (LookupError, RuntimeError) as error:
        raise ImportError(
            f"TensorFlow {tf.__version__} does not take popdist's operations: {error}. "
            f"Install tensorflow {TENSORFLOW.tried}, with which popdist was tried."
        ) from error
    for name in ("PopdistCall", "PopdistReduce", "PopdistPack", "PopdistUnpack"):
        tf.no_gradient(name)


class _Calls:
    """STATE: the functions that graphs call, by the keys in the graphs.

    They are kept as long as TensorFlow keeps the functions that its graphs call: for
    good.
    """

    def __init__(self) -> None:
        self._functions: list[KernelFunction] = []

    def add(self, function: KernelFunction) -> int:
        self._functions.append(function)
        return len(self._functions) - 1

    def carry_out(
        self, key: int, arguments: tuple[Any, ...]
    ) -> tuple[int, str, tuple[Any, ...]]:
        """Carry out a call; return the code and text of its status, and its results."""
        try:
            results = self._functions[key](*arguments)
        # Whatever it is: the thread is TensorFlow's.
        except BaseException as error:
            return *_status_of(error), ()
        return tf.errors.OK, "", tuple(results or ())


_CALLS = _Calls()


def _status_of(error: BaseException) -> tuple[int, str]:
    """Return a status for an error: an OpError's own, or as tf.numpy_function does."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, tf.errors.OpError):
        # Where popdist raised it says nothing about the program.
        return error.error_code, text.replace("\0", "")
    code = tf.errors.UNKNOWN
    if isinstance(error, ValueError | TypeError):
        code = tf.errors.INVALID_ARGUMENT
    elif isinstance(error, MemoryError):
        code = tf.errors.RESOURCE_EXHAUSTED
    elif isinstance(error, NotImplementedError):
        code = tf.errors.UNIMPLEMENTED
    lines = "".join(traceback.format_exception(error))
    return code, f"{text}\n{lines}".replace("\0", "")


def add_call(function: KernelFunction) -> int:
    """Return a function's key for operations of graphs."""
    return _CALLS.add(function)


def add_operation(name: str, **arguments: Any) -> list[Tensor]:
    """Add one of popdist's operations to the graph, and return its results."""
    _, _, operation, _ = op_def_library._apply_op_helper(name, **arguments)
    return list(operation.outputs)


_register_operations()
