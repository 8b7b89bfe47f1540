"""Keras models, layers and optimizers for IPUs: tf.keras's, with options."""

from importlib import import_module
from types import ModuleType

from . import optimizers
from .models import Model, PipelineModel, PipelineSequential, PipelineStage, Sequential


def __getattr__(name: str) -> ModuleType:
    """Import the layers when they are asked for: they import Keras, in seconds."""
    if name == "layers":
        return import_module(f"{__name__}.layers")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
