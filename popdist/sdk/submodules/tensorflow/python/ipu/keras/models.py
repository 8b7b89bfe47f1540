"""The models of older releases, and the stages of a pipeline."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from ..refusals import refuse
from ..scopes import ipu_shard
from .model_options import add_to_models, execute_any_steps

_USED = (
    "gradient_accumulation_count",
    "gradient_accumulation_dtype",
    "batch_serialization_iterations",
)
# They are about a chip, and change no result.
_UNUSED = (
    "layer_replacement",
    "offload_weight_update_variables",
    "replicated_optimizer_state_sharding",
)
_UNUSED_BY_PIPELINES = (
    *_UNUSED,
    "pipeline_schedule",
    "recomputation_mode",
    "forward_propagation_stages_poplar_options",
    "backward_propagation_stages_poplar_options",
    "weight_update_poplar_options",
    "offload_activations",
    "offload_gradient_accumulation_buffers",
    "replicated_weight_sharding",
    "offload_weights",
    "device_mapping",
)


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
    return _with_options(tf.keras.Sequential(layers, name=name), options, _UNUSED)


def Model(*args: Any, name: str | None = None, **options: Any) -> Any:
    """Return a tf.keras.Model of inputs and outputs; the options as for Sequential."""
    return _with_options(_functional(args, name, options), options, _UNUSED)


def PipelineSequential(
    stages: Sequence[Sequence[Any]], name: str | None = None, **options: Any
) -> Any:
    """Return a tf.keras.Sequential of the layers of all stages, in their order.

    Args:
        stages: Lists of layers.
        name: Its name.
        options: gradient_accumulation_count, and options for a chip.
    """
    if not isinstance(stages, list) or not stages:
        raise ValueError(
            "An IPU pipeline must take a non-empty list of stages, where each stage is "
            f"a list of Keras layers, but got {stages!r}."
        )
    for number, stage in enumerate(stages):
        if not isinstance(stage, list):
            raise ValueError(
                "An IPU pipeline may only contain lists of stages, where each stage is "
                f"a list of Keras layers, but stage {number} is {stage!r}."
            )
    mapping = options.get("device_mapping")
    if mapping is not None and len(mapping) != len(stages):
        raise ValueError(
            f"device_mapping names {len(mapping)} IPUs, but there are {len(stages)} "
            "stages. Name one for each stage."
        )
    layers = [layer for stage in stages for layer in stage]
    model = tf.keras.Sequential(layers, name=name)
    return _with_options(model, options, _UNUSED_BY_PIPELINES)


def PipelineModel(*args: Any, name: str | None = None, **options: Any) -> Any:
    """Return a tf.keras.Model of inputs and outputs; the options as for Sequential.

    Its stages are computed one after the other: PipelineStage() changes no result.
    """
    model = _functional(args, name, options)
    return _with_options(model, options, _UNUSED_BY_PIPELINES)


def _functional(args: Any, name: str | None, options: dict[str, Any]) -> Any:
    """Return a model of inputs and outputs, which may be among the options."""
    inputs = {key: options.pop(key) for key in ("inputs", "outputs") if key in options}
    return tf.keras.Model(*args, name=name, **inputs)


def _with_options(model: Any, options: dict[str, Any], unused: Sequence[str]) -> Any:
    unknown = [name for name in options if name not in (*_USED, *unused)]
    if unknown:
        raise TypeError(
            f"The model has no option {unknown[0]}. Choose among "
            f"{', '.join(sorted((*_USED, *unused)))}."
        )
    if options.get("batch_serialization_iterations", 1) != 1:
        refuse("batch serialization", "batch_serialization_iterations must be 1.")
    add_to_models()
    model.set_gradient_accumulation_options(
        options.get("gradient_accumulation_count"),
        dtype=options.get("gradient_accumulation_dtype"),
    )
    execute_any_steps(model)
    return model
