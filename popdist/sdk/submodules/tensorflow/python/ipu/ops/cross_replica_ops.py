"""Sums over all replicas of a program, which popdist's engine makes.

They are over the processes that the configuration distributes the replicas to: a single
replica gets its own value. PopDistStrategy runs the replicas of its job, one or several
in a process.
"""

from typing import Any

import tensorflow as tf

import popdist
from popdist.tensorflow import PopDistStrategy, allreduce

from ..config import is_configured
from ..refusals import refuse
from ..replication import check_replicas, process_count

Tensor = Any


def cross_replica_sum(
    x: Tensor, replica_group_size: int | None = None, name: str | None = None
) -> Tensor:
    """Return the sum of a tensor over all replicas, which must all compute it.

    Args:
        x: A tensor of the same shape and type in all replicas.
        replica_group_size: 1 for no sum; None for one over all replicas.
        name: The name of the operation.
    """
    return _reduce(x, tf.distribute.ReduceOp.SUM, replica_group_size, name)


def cross_replica_mean(
    x: Tensor, replica_group_size: int | None = None, name: str | None = None
) -> Tensor:
    """Return the mean of a tensor over all replicas; as `cross_replica_sum`."""
    return _reduce(x, tf.distribute.ReduceOp.MEAN, replica_group_size, name)


def assume_equal_across_replicas(
    tensors: Tensor, inplace: bool = False, name: str | None = None
) -> Tensor:
    """Return the tensors, which the program knows to be equal on all replicas."""
    return tf.nest.map_structure(tf.identity, tensors)


def _reduce(x: Tensor, operation: Any, group_size: int | None, name: Any) -> Tensor:
    context = tf.distribute.get_replica_context()
    # With one local replica calls are matched by their names, in loops of graphs, too.
    if popdist.getNumLocalReplicas() > 1 and is_of_popdist(context):
        _check_group_size(group_size, context.num_replicas_in_sync)
        total = x if group_size == 1 else _reduce_replicas(x, operation)
        return tf.identity(total, name)
    is_late = not is_configured() and popdist.getNumInstances() > 1
    replicas = popdist.getNumInstances() if is_late else process_count() or 1
    if process_count():
        check_replicas()
    _check_group_size(group_size, replicas)
    if replicas == 1 or group_size == 1:
        return tf.identity(x, name)
    if is_late:
        return _reduce_if_distributed(x, operation)
    return tf.identity(allreduce(x, operation), name)


def _reduce_replicas(x: Tensor, operation: Any) -> Tensor:
    """Return a reduction over replicas, also where the strategy adds none itself."""

    @tf.custom_gradient
    def reduce(value: Tensor) -> Any:
        context = tf.distribute.get_replica_context()
        total = context.merge_call(
            lambda strategy, own: strategy.extended.reduce_to(operation, own, own),
            args=(value,),
        )
        return total, lambda gradient: _reduce_replicas(gradient, operation)

    return reduce(x)


def is_of_popdist(context: Any) -> bool:
    """Return whether this is the context of a replica that PopDistStrategy runs."""
    return context is not None and isinstance(context.strategy, PopDistStrategy)


def _check_group_size(group_size: int | None, replicas: int) -> None:
    if group_size not in (None, 1, replicas):
        refuse(
            f"replica_group_size {group_size}",
            f"sums are over all {replicas} replicas, or none.",
        )


def _reduce_if_distributed(x: Tensor, operation: Any) -> Tensor:
    """Return a sum or mean in a program that is compiled before it is configured.

    Whether its replicas are distributed over the instances is known when it runs.
    """
    x = tf.convert_to_tensor(x)
    distributed = tf.numpy_function(lambda: process_count() > 1, [], tf.bool)
    distributed.set_shape([])
    total = tf.cond(distributed, lambda: allreduce(x, operation), lambda: x)
    total.set_shape(x.shape)
    return total
