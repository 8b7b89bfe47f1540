"""Keras optimizers that accumulate gradients, or take the mean of the replicas'."""

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from ..gradient_accumulation import (
    GradientAccumulationReductionMethod,
    apply_accumulated,
    build_optimizer,
    check_count,
    parse_method,
)
from ..ops.cross_replica_ops import cross_replica_mean
from ..refusals import LOSS_SCALING, refused

Optimizer = Any
_SUM = GradientAccumulationReductionMethod.SUM

ALSOptimizer = refused("ALSOptimizer", LOSS_SCALING)


def GradientAccumulationOptimizer(
    opt: Optimizer,
    num_mini_batches: int,
    offload_weight_update_variables: bool | None = None,
    replicated_optimizer_state_sharding: bool = False,
    dtype: Any = None,
    reduction_method: Any = _SUM,
    name: str = "GradientAccumulationOptimizer",
) -> Optimizer:
    """Return an optimizer that applies the sum of several micro-batches' gradients.

    Args:
        opt: The optimizer, which is changed.
        num_mini_batches: How many micro-batches make one step.
        offload_weight_update_variables: Whether an IPU keeps the optimizer's state
            outside the chip.
        replicated_optimizer_state_sharding: Whether its replicas share that.
        dtype: The type of the sums; None for the gradients'.
        reduction_method: Whether the sum is applied, or a mean.
        name: Has no effect.
    """
    steps = check_count("num_mini_batches", num_mini_batches)
    method = parse_method(reduction_method)

    accumulate = partial(apply_accumulated, steps=steps, dtype=dtype, method=method)
    return _around_apply(opt, accumulate) if steps > 1 else opt


def CrossReplicaOptimizer(
    opt: Optimizer, name: str = "CrossReplicaOptimizer"
) -> Optimizer:
    """Return an optimizer that applies the mean of all replicas' gradients."""

    def mean(gradient: Any, variable: Any) -> Any:
        return cross_replica_mean(tf.convert_to_tensor(gradient))

    return MapGradientOptimizer(opt, mean)


def MapGradientOptimizer(
    opt: Optimizer,
    gradient_mapping_function: Callable[[Any, Any], Any],
    name: str = "MapGradientOptimizer",
) -> Optimizer:
    """Return an optimizer that applies a function's result for each gradient.

    Args:
        opt: The optimizer, which is changed.
        gradient_mapping_function: Takes a gradient and its variable.
        name: Has no effect.
    """
    return _around_apply(
        opt,
        lambda apply, pairs: apply(
            [(gradient_mapping_function(g, v), v) for g, v in pairs]
        ),
    )


def _around_apply(opt: Optimizer, around: Callable[..., Any]) -> Optimizer:
    """Return the optimizer with a function for its gradients."""
    if not hasattr(opt, "apply_gradients"):
        raise TypeError(f"{opt!r} is not a Keras optimizer.")
    apply = opt.apply_gradients

    def apply_gradients(grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = [(grad, var) for grad, var in grads_and_vars if grad is not None]
        build_optimizer(opt, [variable for _, variable in pairs])
        return around(lambda pairs: apply(pairs, *args, **kwargs), pairs)

    opt.apply_gradients = apply_gradients
    return opt
