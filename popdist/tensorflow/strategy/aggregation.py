"""Which variables of their own the replicas write in a run, and when."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from popdist.tensorflow.strategy.extending import extend
from popdist.tensorflow.tensors.memory import Tensor


def record_functions(strategy_class: type[Any]) -> None:
    """Let the calls of functions that were traced before be recorded in runs.

    What such a function writes is known from its tracing alone. The extended strategies
    have a method record_call.
    """
    extend(
        "tensorflow.python.eager.polymorphic_function.concrete_function",
        "ConcreteFunction",
        "_call_flat",
        partial(_call_recorded, strategy_class),
    )


def _call_recorded(
    strategy_class: type[Any], call: Any, function: Any, *args: Any, **kwargs: Any
) -> Any:
    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, strategy_class):
        strategy.extended.record_call(function.graph)
    return call(function, *args, **kwargs)


@tf.autograph.experimental.do_not_convert
def tensors_in(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors among the arguments of a replica."""
    flat = tf.nest.flatten((args, kwargs), expand_composites=True)
    return [each for each in flat if isinstance(each, tf.Tensor)]
