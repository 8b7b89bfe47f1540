"""Calls that gradients flow through: backward is a call among the same ranks."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.record import could_possibly_record

from popdist.tensorflow.tensors.memory import Tensor
from popdist.tensorflow.tensors.operation import zeros_after

from ..common.calls.gradient_rules import check_gradient, factor_of_scatter, is_root
from ..common.calls.reduce_ops import Average, Reduction
from ..common.process_sets import ProcessSet
from .calls import (
    broadcast_tensors,
    exchange_rows,
    gather_tensors,
    reduce_tensors,
    scatter_tensors,
)

# Makes a call on tensors.
Call = Callable[[Sequence[Tensor]], list[Tensor]]
# Returns the gradients of a call's tensors. It gets the gradients of the results, the
# tensors, and the results.
Gradient = Callable[
    [Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]
]


def allreduce(
    tensors: Sequence[Tensor],
    reduction: Reduction,
    name: str | None,
    process_set: ProcessSet,
) -> list[Tensor]:
    """Return tensors reduced; the gradients are reduced in the same way."""
    call = partial(
        reduce_tensors, reduction=reduction, name=name, process_set=process_set
    )

    def gradient(grads: Sequence[Tensor], *_: object) -> list[Tensor]:
        check_gradient("allreduce", reduction, "tf.stop_gradient(tensor)")
        return allreduce(grads, reduction, None, process_set)

    return _results_of(call, gradient, tensors)


def allgather(
    tensors: Sequence[Tensor], name: str | None, process_set: ProcessSet
) -> list[Tensor]:
    """Return tensors gathered; the gradient is all ranks' average for the own rows.

    The derivative of what the ranks compute together would be the sum. Horovod 0.28
    averages, as it averages the gradients of a broadcast.
    """
    call = partial(gather_tensors, name=name, process_set=process_set)

    def gradient(
        grads: Sequence[Tensor], inputs: Sequence[Tensor], _: object
    ) -> list[Tensor]:
        rows = tf.stack([tf.shape(tensor)[0] for tensor in inputs])
        (each,) = gather_tensors([rows[tf.newaxis]], None, process_set)
        starts = tf.reduce_sum(each[: process_set.rank()], axis=0)
        averages = allreduce(grads, Reduction(Average), None, process_set)
        return [
            average[starts[index] : starts[index] + rows[index]]
            for index, average in enumerate(averages)
        ]

    return _results_of(call, gradient, tensors)


def broadcast(
    tensors: Sequence[Tensor],
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
) -> list[Tensor]:
    """Return the root's tensors; the gradients are the average there, else zero."""
    call = partial(
        broadcast_tensors, root_rank=root_rank, name=name, process_set=process_set
    )

    def gradient(grads: Sequence[Tensor], *_: object) -> list[Tensor]:
        averages = allreduce(grads, Reduction(Average), None, process_set)
        if is_root(root_rank, process_set):
            return averages
        return [zeros_after(average) for average in averages]

    return _results_of(call, gradient, tensors)


def alltoall(
    tensor: Tensor, splits: Tensor | None, name: str | None, process_set: ProcessSet
) -> list[Tensor]:
    """Return rows exchanged; the gradients go back to the rows' senders."""

    def call(tensors: Sequence[Tensor]) -> list[Tensor]:
        return exchange_rows(tensors[0], splits, name, process_set)

    def gradient(
        grads: Sequence[Tensor], inputs: Sequence[Tensor], results: Sequence[Tensor]
    ) -> list[Tensor]:
        returned, _ = alltoall(grads[0], results[1], None, process_set)
        # Rows that went nowhere.
        rest = inputs[0][tf.shape(returned)[0] :]
        unsent = tf.zeros_like(rest, dtype=returned.dtype)
        return [tf.concat([returned, unsent], axis=0)]

    return _results_of(call, gradient, [tensor])


def reducescatter(
    tensors: Sequence[Tensor],
    reduction: Reduction,
    name: str | None,
    process_set: ProcessSet,
) -> list[Tensor]:
    """Return this rank's rows of tensors reduced; the gradients are gathered."""
    call = partial(
        scatter_tensors, reduction=reduction, name=name, process_set=process_set
    )

    def gradient(grads: Sequence[Tensor], *_: object) -> list[Tensor]:
        check_gradient("reducescatter", reduction, "tf.stop_gradient(tensor)")
        factor = factor_of_scatter(reduction, process_set)
        scaled = [grad * tf.cast(factor, grad.dtype) for grad in grads]
        return allgather(scaled, None, process_set)

    return _results_of(call, gradient, tensors)


def _results_of(
    call: Call, gradient: Gradient, tensors: Sequence[Tensor]
) -> list[Tensor]:
    """Make a call and return its results, which have gradients."""
    if tf.executing_eagerly() and not could_possibly_record():
        return call(tensors)

    @tf.custom_gradient
    def differentiable(*inputs: Tensor) -> Any:
        results = call(inputs)
        return results, lambda *grads: gradient(grads, inputs, results)

    return list(differentiable(*tensors))
