"""What TensorFlow is told, so that it runs programs for IPUs on the CPU.

Operations for /device:IPU:0 go to the CPU, which in sessions is left to soft placement.
jit_compile=True asks to compile for the IPU: it does not mean that XLA compiles for the
CPU, which knows neither the queues nor the iterators of such programs.
"""

from functools import wraps
from typing import Any

import tensorflow as tf
from tensorflow.python.client import session
from tensorflow.python.eager.polymorphic_function import polymorphic_function


def apply() -> None:
    """Set what programs for IPUs need, in this process."""
    tf.config.set_soft_device_placement(True)
    session.BaseSession.__init__ = _placing_softly(session.BaseSession.__init__)
    # What a function is made with is forgotten: all that read it find None.
    polymorphic_function.Function._jit_compile = property(
        lambda function: None, lambda function, value: None
    )


# Any: TensorFlow has no types.
def _placing_softly(initialise: Any) -> Any:
    """Return a constructor of sessions that places operations softly."""

    @wraps(initialise)
    def __init__(
        self: Any, target: Any = "", graph: Any = None, config: Any = None
    ) -> None:
        if isinstance(config, tf.compat.v1.ConfigProto):
            soft = tf.compat.v1.ConfigProto()
            soft.CopyFrom(config)
            soft.allow_soft_placement = True
            config = soft
        initialise(self, target, graph, config)

    return __init__
