"""Collectives between the instances on tensors, matched by the names of tensors.

They work in eager execution, in tf.function and in the graphs of sessions. The graphs
of two instances may make them in different orders, and gradients pass through them. In
a graph a tensor's name is the default; calls without one, in eager execution, are
matched with each other by their order.

Tensors with other dtypes or shapes on other instances are an UnknownError.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from popdist import collectives
from popdist.communicators import participants
from popdist.engine.calls.array_rows import Array
from popdist.errors import MismatchError
from popdist.session import STATE
from popdist.tensorflow.tensors.memory import Tensor, new_memory
from popdist.tensorflow.tensors.operation import (
    call_by_name,
    name_of,
    unique_name,
    zeros_after,
)

# A function that makes a call on one array.
_Call = Callable[[Array], Array]


def allreduce(value: Any, reduce_op: Any, tensor_name: str | None = None) -> Tensor:
    """Return the sum of the instances' tensors, or their mean.

    Args:
        value: A tensor of the same dtype and shape on all instances.
        reduce_op: tf.distribute.ReduceOp.SUM or MEAN, or one of these names.
        tensor_name: The name that matches the call on all instances.

    Raises:
        TypeError: The tensors are bools, which have no mean.
        ValueError: The operation is not SUM or MEAN.
    """
    mean = _is_mean(reduce_op)
    tensor = tf.convert_to_tensor(value)
    name = _name(tensor_name, "AllReduce", tensor)
    if mean and tensor.dtype == tf.bool:
        raise TypeError(
            "Bools have no mean. Cast them to numbers first, or ask for SUM."
        )
    if mean and tensor.dtype in (tf.float16, tf.bfloat16):
        # The sum may be larger than the largest number of 16 bits.
        wide = allreduce(tf.cast(tensor, tf.float32), reduce_op, name)
        return tf.cast(wide, tensor.dtype)

    def add(array: Array) -> Array:
        return collectives.allReduceSum(_copy(array), name)

    @tf.custom_gradient
    def reduced(tensor: Tensor) -> tuple[Tensor, Callable[..., Tensor]]:
        total = _call(add, tensor, tensor.shape)

        def gradient(upstream: Tensor) -> Tensor:
            return allreduce(upstream, reduce_op, _of_gradient(name))

        return _divided(total) if mean else total, gradient

    return reduced(tensor)


def allgather(value: Any, tensor_name: str | None = None) -> Tensor:
    """Return the instances' tensors along a new first axis.

    Args:
        value: A tensor of the same dtype and shape on all instances.
        tensor_name: The name that matches the call on all instances.
    """
    tensor = tf.convert_to_tensor(value)
    name = _name(tensor_name, "AllGather", tensor)
    instances = participants()

    def gather(array: Array) -> Array:
        rows = new_memory((len(instances), *array.shape), array.dtype)
        return collectives.allGather(array, rows, name)

    @tf.custom_gradient
    def gathered(tensor: Tensor) -> tuple[Tensor, Callable[..., Tensor]]:
        shape = tf.TensorShape([len(instances)]).concatenate(tensor.shape)
        own = instances.index(STATE.job.place.rank)

        def gradient(upstream: Tensor) -> Tensor:
            return allreduce(upstream, "SUM", _of_gradient(name))[own]

        return _call(gather, tensor, shape), gradient

    return gathered(tensor)


def broadcast(value: Any, root_rank: int = 0, tensor_name: str | None = None) -> Tensor:
    """Return the tensor of one instance.

    Args:
        value: A tensor of the same dtype and shape on all instances.
        root_rank: The index of that instance.
        tensor_name: The name that matches the call on all instances.
    """
    tensor = tf.convert_to_tensor(value)
    name = _name(tensor_name, "Broadcast", tensor)

    def share(array: Array) -> Array:
        return collectives.broadcast(_copy(array), root_rank, name)

    @tf.custom_gradient
    def shared(tensor: Tensor) -> tuple[Tensor, Callable[..., Tensor]]:
        def gradient(upstream: Tensor) -> Tensor:
            total = allreduce(upstream, "SUM", _of_gradient(name))
            is_root = STATE.job.place.rank == root_rank
            return total if is_root else zeros_after(total)

        return _call(share, tensor, tensor.shape), gradient

    return shared(tensor)


def _is_mean(reduce_op: Any) -> bool:
    text = getattr(reduce_op, "value", reduce_op)
    if text not in ("SUM", "MEAN"):
        raise ValueError(
            f"Unsupported reduce op: {reduce_op}. Ask for tf.distribute.ReduceOp.SUM "
            "or MEAN."
        )
    return bool(text == "MEAN")


def _name(given: str | None, operation: str, tensor: Tensor) -> str | None:
    if given is not None or tf.executing_eagerly():
        return given
    # Unique, because two calls of one graph may be under way at once.
    name = f"PopDist{operation}_{name_of(tensor)}"
    return unique_name(name)


def _of_gradient(name: str | None) -> str | None:
    return name and f"{name}_grad"


def _copy(array: Array) -> Array:
    copy = new_memory(array.shape, array.dtype)
    np.copyto(copy, array)
    return copy


def _divided(total: Tensor) -> Tensor:
    """Return the sum, of any dtype, divided by the number of instances."""
    instances = tf.cast(len(participants()), total.dtype)
    if total.dtype.is_floating:
        return total / instances
    return total // instances


def _call(call: _Call, tensor: Tensor, shape: tf.TensorShape) -> Tensor:
    spec = tf.TensorSpec(shape, tensor.dtype)
    try:
        (result,) = call_by_name(lambda arrays: [call(arrays[0])], [tensor], [spec])
    except MismatchError as error:
        # A graph raises the same error.
        raise tf.errors.UnknownError(None, None, str(error)) from error
    return result
