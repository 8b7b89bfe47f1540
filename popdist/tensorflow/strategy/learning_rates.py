"""The learning rates of tf_keras's optimizers, which each replica computes once.

The optimizers in `keras.optimizers.legacy` compute equal rates, one for each device of
the variables. A schedule that counts its calls, or enqueues its results, would do so
once for each local replica.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.values import DistributedVariable

from popdist.tensorflow.extending import extends
from popdist.tensorflow.strategy.extended import uses_popdist


@extends("OptimizerV2._prepare")
def prepare_once(
    prepare: Callable[..., dict[Any, Any]], optimizer: Any, variables: Sequence[Any]
) -> dict[Any, Any]:
    """Return what updates need, by the devices and types of the variables."""
    if not uses_popdist():
        return prepare(optimizer, variables)
    local = tf.distribute.get_strategy().experimental_local_results
    first = {id(variable): local(variable)[0] for variable in variables}
    needed = prepare(optimizer, list(first.values()))
    for variable in variables:
        if isinstance(variable, DistributedVariable):
            part = first[id(variable)]
            for each in local(variable):
                kind = each.dtype.base_dtype
                needed[each.device, kind] = needed[part.device, kind]
    return needed
