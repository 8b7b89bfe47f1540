"""Which variables of their own the replicas write in a run, and when."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from popdist.tensorflow.tensors.memory import Tensor


def call_recorded(
    strategy_class: type[Any], call: Any, function: Any, *args: Any, **kwargs: Any
) -> Any:
    """Call a function that was traced before, and record what it writes in a run.

    Its tracing alone has recorded that. The extended strategies have a method
    record_call.
    """
    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, strategy_class):
        strategy.extended.record_call(function.graph)
    return call(function, *args, **kwargs)


@tf.autograph.experimental.do_not_convert
def tensors_in(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors among the arguments of a replica."""
    flat = tf.nest.flatten((args, kwargs), expand_composites=True)
    return [each for each in flat if isinstance(each, tf.Tensor)]
