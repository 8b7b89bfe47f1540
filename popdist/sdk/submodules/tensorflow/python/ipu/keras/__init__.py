"""Keras models, layers and optimizers for IPUs: tf.keras's, with options."""

import sys
from importlib import import_module
from types import ModuleType

import wrapt

from . import optimizers
from .models import Model, PipelineModel, PipelineSequential, PipelineStage, Sequential

# The modules that programs have as keras, tf_keras and tf.keras.
_KERASES = (
    "keras",
    "keras._tf_keras.keras",
    "tensorflow.keras",
    "tf_keras",
    "tf_keras.api._v2.keras",
)


def _add_to_keras(package: ModuleType) -> None:
    """Give a Keras this package as `ipu`, which Graphcore's Keras has."""
    package.ipu = sys.modules[__name__]  # type: ignore[attr-defined]


for _name in _KERASES:
    sys.modules[f"{_name}.ipu"] = sys.modules[__name__]
    sys.modules[f"{_name}.ipu.optimizers"] = optimizers
    wrapt.register_post_import_hook(_add_to_keras, _name)


def __getattr__(name: str) -> ModuleType:
    """Import the layers when they are asked for: they import Keras, in seconds."""
    if name == "layers":
        return import_module(f"{__name__}.layers")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
