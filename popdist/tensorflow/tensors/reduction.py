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

# What reduces the arrays of tables, one of each dtype in the order in which these come
# first: see popdist.engine.group.Group.all_reduce_table.
ReduceTables = Callable[..., None]

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
    reduce: ReduceTables,
    values: Sequence[Sequence[Tensor]],
    devices: Sequence[str],
    spread: bool,
) -> list[list[Tensor]]:
    """Return the reduction of each value, in a tf.function, in the program's order.

    Args:
        reduce: Reduces them, given where they lie.
        values: Of each, the tensor on each of the devices.
        spread: Return each result on each of the devices; else on the first one.
    """
    check_graph()
    key = _CALLS.add(reduce)
    dtypes = [tensors[0].dtype for tensors in values]
    kinds = [*dict.fromkeys(dtypes)]
    # Those of one dtype are given one after the other.
    order = sorted(range(len(values)), key=lambda index: kinds.index(dtypes[index]))
    first, *others = zip(*[values[index] for index in order], strict=True)
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
            types = [dtypes[index] for index in order]
            parts.append(_operation("PopdistUnpack", bundle=bundle, T=types))
    results: dict[int, list[Tensor]] = {}
    for index, *copies in zip(order, *parts, strict=True):
        for copy in copies:
            copy.set_shape(values[index][0].shape)
        results[index] = copies
    return [results[index] for index in range(len(values))]


class _Calls:
    """STATE: what carries out the calls of graphs, by the keys that are in these.

    They are kept as long as TensorFlow keeps the functions that its graphs call: for
    good.
    """

    def __init__(self) -> None:
        self._functions: list[ReduceTables] = []

    def add(self, function: ReduceTables) -> int:
        self._functions.append(function)
        return len(self._functions) - 1

    def carry_out(self, key: int, tables: tuple[bytes, ...]) -> tuple[int, str] | None:
        """Carry out a call; return the code and the text of its error."""
        try:
            self._functions[key](*tables)
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
