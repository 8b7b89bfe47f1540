"""Settings of TensorFlow, so that it runs programs for IPUs on the CPU.

Operations for /device:IPU:0 go to the CPU, which in sessions is left to soft placement.
jit_compile=True asks to compile for the IPU: it must not let XLA compile for the CPU,
because XLA has neither queues nor iterators.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import polymorphic_function

from popdist.tensorflow.extending import extend


def apply() -> None:
    """Set what programs for IPUs need, in this process."""
    tf.config.set_soft_device_placement(True)
    extend("BaseSession.__init__", _place_softly)
    # A function forgets the value that it is made with: every read finds None.
    polymorphic_function.Function._jit_compile = property(
        lambda function: None, lambda function, value: None
    )


def _place_softly(
    initialize: Callable[..., None],
    session: Any,
    target: Any = "",
    graph: Any = None,
    config: Any = None,
) -> None:
    """Initialize a session that places operations for IPUs on the CPU."""
    if isinstance(config, tf.compat.v1.ConfigProto):
        soft = tf.compat.v1.ConfigProto()
        soft.CopyFrom(config)
        soft.allow_soft_placement = True
        config = soft
    initialize(session, target, graph, config)
