"""Graphcore's part of TensorFlow, emulated on the CPU by TensorFlow and popdist.

TensorFlow and both Kerases declare no types, so their objects are Any in this package.
"""

from types import ModuleType

from . import (
    config,
    dataset_benchmark,
    distributed,
    gradient_accumulation,
    ipu_compiler,
    ipu_infeed_queue,
    ipu_outfeed_queue,
    ipu_session_run_hooks,
    ipu_strategy,
    keras,
    loops,
    ops,
    optimizers,
    scopes,
    sharding,
    tensorflow_settings,
    test_utils,
    utils,
)
from .ops import *  # noqa: F403
from .ops.functional_ops import outlined_function
from .refusals import add_modules

add_modules(__name__)
autoshard = sharding

# Other modules tell the stand-in from Graphcore's package by it.
__stand_in__ = True

tensorflow_settings.apply()


def __getattr__(name: str) -> ModuleType:
    """Return `layers`, a further name of Keras' layers for IPUs."""
    if name == "layers":
        layers: ModuleType = keras.layers
        return layers
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
