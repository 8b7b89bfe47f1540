"""The models of older releases, and the stages of a pipeline."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from ..refusals import refused
from ..scopes import ipu_shard
from .model_options import add_to_models

__all__ = [
    "Model",
    "PipelineModel",
    "PipelineSequential",
    "PipelineStage",
    "Sequential",
]

# Any: Keras' models have no types.
_REASON = "make a model of tf.keras under IPUStrategy, and call set_pipelining_options."
PipelineModel = refused("PipelineModel", _REASON)
PipelineSequential = refused("PipelineSequential", _REASON)


@contextmanager
def PipelineStage(stage: int) -> Iterator[None]:
    """Put layers in a stage of a pipeline; all stages are computed by the same CPU."""
    with ipu_shard(stage):
        yield


def Sequential(layers: Any = None, name: str | None = None, **options: Any) -> Any:
    """Return a tf.keras.Sequential.

    Args:
        layers: Its layers.
        name: Its name.
        options: gradient_accumulation_count, and options for a chip.
    """
    return _with_options(tf.keras.Sequential(layers, name=name), options)


def Model(*args: Any, name: str | None = None, **options: Any) -> Any:
    """Return a tf.keras.Model of inputs and outputs; the options as for Sequential."""
    inputs = {key: options.pop(key) for key in ("inputs", "outputs") if key in options}
    return _with_options(tf.keras.Model(*args, name=name, **inputs), options)


def _with_options(model: Any, options: dict[str, Any]) -> Any:
    add_to_models()
    model.set_gradient_accumulation_options(
        options.get("gradient_accumulation_count"),
        dtype=options.get("gradient_accumulation_dtype"),
    )
    return model
