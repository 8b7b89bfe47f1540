"""All-reduces of tensors in graphs, by operations that lead straight to the engine.

TensorFlow's own way to call Python from a graph costs microseconds for each tensor, and
so does each tensor that goes from one device to another. popdist's operations take all
tensors at once. They are registered when the first graph needs them.
"""

import os
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_library

from popdist.tensorflow.tensors import _kernels
from popdist.tensorflow.tensors.memory import Tensor
from popdist.tensorflow.tensors.operation import call_order, check_graph

# What reduces the arrays of a table: see popdist.engine.group.Group.all_reduce_table.
ReduceTable = Callable[[bytes], None]

_LIBRARY = "libtensorflow_cc.so.2"


@cache
def are_operations_available() -> bool:
    """Register popdist's operations, and return whether this TensorFlow has them now.

    It warns once where it does not.
    """
    path = os.path.join(tf.sysconfig.get_lib(), _LIBRARY)
    try:
        _kernels.register_operations(path, _CALLS.carry_out)
    except (LookupError, RuntimeError) as error:
        warnings.warn(
            f"TensorFlow {tf.__version__} does not take popdist's operations ({error}),"
            " so collectives in graphs are slower: tf.numpy_function carries them.",
            stacklevel=2,
        )
        return False
    for name in ("PopdistReduce", "PopdistPack", "PopdistUnpack"):
        tf.no_gradient(name)
    return True


@tf.autograph.experimental.do_not_convert
def reduce_in_graph(
    reduce: ReduceTable,
    values: Sequence[Sequence[Tensor]],
    devices: Sequence[str],
    spread: bool,
) -> list[list[Tensor]]:
    """Return the reduction of each value, in a tf.function, in the program's order.

    Args:
        reduce: Reduces them, given where they lie.
        values: Of each, the tensor on each of the devices. They are of one dtype.
        spread: Return each result on each of the devices; else on the first one.
    """
    check_graph()
    key = _CALLS.add(reduce)
    first, *others = zip(*values, strict=True)
    bundles = []
    for device, tensors in zip(devices[1:], others, strict=True):
        with tf.device(device):
            bundles += _operation("PopdistPack", tensors=list(tensors))
    with tf.device(devices[0]):
        outputs = _operation(
            "PopdistReduce",
            order=call_order(),
            tensors=list(first),
            others=bundles,
            key=key,
        )
    parts = [outputs[: len(values)]]
    shared = outputs[len(values) :] if spread else []
    for device, bundle in zip(devices[1:], shared, strict=False):
        with tf.device(device):
            parts.append(
                _operation(
                    "PopdistUnpack", bundle=bundle, T=values[0][0].dtype, K=len(values)
                )
            )
    for part in parts:
        for result, (tensor, *_) in zip(part, values, strict=True):
            result.set_shape(tensor.shape)
    return [list(results) for results in zip(*parts, strict=True)]


class _Calls:
    """STATE: what carries out the calls of graphs, by the keys that are in these.

    They are kept as long as TensorFlow keeps the functions that its graphs call: for
    good.
    """

    def __init__(self) -> None:
        self._functions: list[ReduceTable] = []

    def add(self, function: ReduceTable) -> int:
        self._functions.append(function)
        return len(self._functions) - 1

    def carry_out(self, key: int, table: bytes) -> tuple[int, str] | None:
        """Carry out a call; return the code and the text of its error."""
        try:
            self._functions[key](table)
        # Whatever it is: the thread is TensorFlow's.
        except BaseException as error:
            return _status_of(error)
        return None


_CALLS = _Calls()


def _status_of(error: BaseException) -> tuple[int, str]:
    """Return a status for an error, as tf.numpy_function does."""
    code = tf.errors.UNKNOWN
    if isinstance(error, ValueError | TypeError):
        code = tf.errors.INVALID_ARGUMENT
    elif isinstance(error, MemoryError):
        code = tf.errors.RESOURCE_EXHAUSTED
    elif isinstance(error, NotImplementedError):
        code = tf.errors.UNIMPLEMENTED
    lines = traceback.format_exception(error)
    text = f"{type(error).__name__}: {error}\n{''.join(lines)}"
    return code, text.replace("\0", "")


# Any: arguments and attributes of many types.
def _operation(name: str, **arguments: Any) -> list[Tensor]:
    _, _, operation, _ = op_def_library._apply_op_helper(name, **arguments)
    return list(operation.outputs)
