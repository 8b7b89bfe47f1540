"""Pipelines: the stages of a model, one after the other on the same CPU.

Micro-batches do not overlap, so the stages run in sequence.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from ..gradient_accumulation import (
    Accumulation,
    GradientAccumulationReductionMethod,
    apply_accumulated,
    build_optimizer,
    check_count,
    parse_method,
)
from ..ipu_infeed_queue import IPUInfeedQueue
from ..ipu_outfeed_queue import IPUOutfeedQueue
from ..loops import as_list, fed_arguments, is_operation, repeat
from ..optimizers import GradientAccumulationOptimizerV2
from ..refusals import refuse
from ..scopes import ipu_shard

Tensor = Any
Stage = Callable[..., Any]
_SUM = GradientAccumulationReductionMethod.SUM
# Programs give it as the device of a stage that all IPUs of a replica compute.
_ALL_DEVICES = -1


class PipelineSchedule(enum.IntEnum):
    """In which order an IPU computes the stages of several micro-batches."""

    Grouped = 0
    Interleaved = 1
    Sequential = 2


class RecomputationMode(enum.Enum):
    """When activations are computed again, where an IPU does not keep them."""

    Auto = 0
    RecomputeThenBackpropagate = 1
    RecomputeAndBackpropagateInterleaved = 2


@dataclass(eq=False)
class OptimizerFunctionOutput:
    """The result of a pipeline's optimizer function.

    opt: An optimizer of tf.compat.v1.train, or of Keras.
    loss: The tensor to minimise.
    compute_gradients_args: Arguments of the optimizer's compute_gradients.
    compute_gradients_kwargs: The same, by name.
    apply_gradients_args: Arguments of its apply_gradients.
    apply_gradients_kwargs: The same, by name.
    variables: The variables that a Keras optimizer changes.
    tape: The GradientTape of a Keras optimizer.
    gradient_capture_context: Not supported.
    captured_gradient_outfeed: Not supported.
    """

    opt: Any
    loss: Tensor
    compute_gradients_args: tuple[Any, ...] | None = None
    compute_gradients_kwargs: Mapping[str, Any] | None = None
    apply_gradients_args: tuple[Any, ...] | None = None
    apply_gradients_kwargs: Mapping[str, Any] | None = None
    variables: Sequence[Any] | None = None
    tape: Any = None
    gradient_capture_context: Any = None
    captured_gradient_outfeed: Any = None

    def __post_init__(self) -> None:
        for name in ("compute_gradients", "apply_gradients"):
            setattr(self, f"{name}_args", getattr(self, f"{name}_args") or ())
            setattr(self, f"{name}_kwargs", getattr(self, f"{name}_kwargs") or {})

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "opt" and not hasattr(value, "apply_gradients"):
            raise TypeError(
                "OptimizerFunctionOutput.opt must be a TensorFlow Optimizer object, "
                f"but is {value!r}."
            )
        if name == "loss" and not tf.is_tensor(value):
            raise TypeError(
                "OptimizerFunctionOutput.loss must be a TensorFlow Tensor object, but "
                f"is {value!r}."
            )
        if name in ("gradient_capture_context", "captured_gradient_outfeed") and value:
            refuse("captured gradients", "use ipu.optimizers.MapGradientOptimizer.")
        super().__setattr__(name, value)


@dataclass(eq=False)
class PipelineStageOptions:
    """Options of Poplar for the operations of a stage, which change no result."""

    convolution_options: Mapping[str, Any] | None = None
    matmul_options: Mapping[str, Any] | None = None
    slice_options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            setattr(self, name, value or {})
            if not isinstance(value or {}, dict):
                raise TypeError(f"PipelineStageOptions.{name} must be a dictionary.")


def recomputation_checkpoint(tensors: Tensor, name: str | None = None) -> Tensor:
    """Return the tensors; a CPU keeps all activations."""
    return tf.nest.map_structure(tf.identity, tensors)


def pipeline(
    computational_stages: Sequence[Stage],
    gradient_accumulation_count: int | None = None,
    gradient_accumulation_dtype: Any = None,
    repeat_count: int = 1,
    batch_serialization_iterations: int = 1,
    inputs: Any = None,
    infeed_queue: IPUInfeedQueue | None = None,
    outfeed_queue: IPUOutfeedQueue | None = None,
    optimizer_function: Callable[..., OptimizerFunctionOutput] | None = None,
    device_mapping: Sequence[int] | None = None,
    pipeline_schedule: PipelineSchedule | None = None,
    recomputation_mode: RecomputationMode | None = None,
    forward_propagation_stages_poplar_options: Any = None,
    backward_propagation_stages_poplar_options: Any = None,
    weight_update_poplar_options: Any = None,
    offload_weight_update_variables: bool | None = None,
    replicated_optimizer_state_sharding: bool = False,
    offload_activations: bool | None = None,
    offload_gradient_accumulation_buffers: bool | None = None,
    replicated_weight_sharding: bool | None = None,
    offload_weights: bool | None = None,
    continuous_weight_updates: bool = False,
    outfeed_loss: bool = False,
    accumulate_outfeed: bool = False,
    accumulate_outfeed_dtype: Any = None,
    outfeed_mask: Sequence[bool] | None = None,
    reduction_method: Any = GradientAccumulationReductionMethod.SUM,
    name: str | None = None,
    pipeline_depth: int | None = None,
) -> Any:
    """Return the operation that runs the stages of a model, and trains it if asked to.

    Args:
        computational_stages: Functions; each takes the results of the one before it.
        gradient_accumulation_count: How many micro-batches make one step.
        gradient_accumulation_dtype: The type of the sums of gradients; None for theirs.
        repeat_count: How many steps.
        batch_serialization_iterations: Must be 1.
        inputs: The first arguments of the first stage, the same in all micro-batches.
        infeed_queue: Where its further arguments come from.
        outfeed_queue: Where the outputs of the last stage go.
        optimizer_function: Takes these outputs, and returns optimizer and loss.
        device_mapping: The IPU of each stage.
        pipeline_schedule: In which order an IPU computes; it changes no result.
        recomputation_mode: When it computes activations again.
        forward_propagation_stages_poplar_options: PipelineStageOptions of the stages.
        backward_propagation_stages_poplar_options: The options of their gradients.
        weight_update_poplar_options: The options of the optimizer.
        offload_weight_update_variables: Whether an IPU keeps the optimizer's state
            outside the chip; and the same for the four that follow.
        replicated_optimizer_state_sharding: Whether replicas share that state.
        offload_activations: See above.
        offload_gradient_accumulation_buffers: See above.
        replicated_weight_sharding: See above.
        offload_weights: See above.
        continuous_weight_updates: Change the weights after each micro-batch.
        outfeed_loss: Let the loss go to the outfeed queue, not the outputs.
        accumulate_outfeed: Let the sums over the micro-batches of a step go there.
        accumulate_outfeed_dtype: The type of these sums, as for gradients.
        outfeed_mask: The outputs that do not go there.
        reduction_method: Whether the sum of gradients is applied, or their mean.
        name: The name of the operation.
        pipeline_depth: The name of gradient_accumulation_count in older releases.
    """
    count = check_count(
        "gradient_accumulation_count", gradient_accumulation_count or pipeline_depth
    )
    check_count("repeat_count", repeat_count)
    if batch_serialization_iterations != 1:
        refuse("batch serialization", "batch_serialization_iterations must be 1.")
    if outfeed_mask is not None and outfeed_loss:
        raise ValueError("Only one of `outfeed_loss` and `outfeed_mask` can be set.")
    if outfeed_loss and optimizer_function is None:
        raise ValueError("An optimizer_function must be provided for outfeed_loss.")
    update = partial(
        _update,
        steps=1 if continuous_weight_updates else count,
        dtype=gradient_accumulation_dtype,
        method=_SUM if continuous_weight_updates else parse_method(reduction_method),
    )
    enqueue = partial(
        _enqueue,
        outfeed_queue,
        steps=count if accumulate_outfeed else 1,
        dtype=accumulate_outfeed_dtype,
    )
    stages = list(computational_stages)
    mapping, first = _check_mapping(stages, device_mapping), as_list(inputs)

    def micro_batch() -> list[Any]:
        with tf.GradientTape(persistent=True) as tape:
            outputs = _run_stages(stages, mapping, first, infeed_queue)
            output = None
            if optimizer_function is not None:
                output = optimizer_function(*as_list(outputs))
        operations = [value for value in as_list(outputs) if is_operation(value)]
        if output is not None:
            operations.append(update(output, tape))
        fed = output.loss if output is not None and outfeed_loss else outputs
        return operations + enqueue(_masked(fed, outfeed_mask))

    with tf.name_scope(name or "pipeline"):
        return repeat(count * repeat_count, micro_batch)


def _check_mapping(
    stages: Sequence[Stage], mapping: Sequence[int] | None
) -> Sequence[int]:
    if len(stages) < 2:
        raise ValueError("Pipeline requires at least two computational stages.")
    if mapping is None:
        return range(len(stages))
    if len(mapping) != len(stages):
        raise ValueError(
            f"device_mapping names {len(mapping)} IPUs, but there are {len(stages)} "
            "stages. Name one for each stage."
        )
    return mapping


def _run_stages(
    stages: Sequence[Stage],
    mapping: Sequence[int],
    inputs: list[Any],
    infeed_queue: IPUInfeedQueue | None,
) -> Any:
    """Return the outputs of the last stage."""
    fed, named = fed_arguments(infeed_queue)
    outputs: Any = [*inputs, *fed]
    for stage, ipu in zip(stages, mapping, strict=True):
        with ipu_shard(max(0, ipu)):
            outputs = stage(*as_list(outputs), **named)
        named = {}
    return outputs


def _update(
    output: OptimizerFunctionOutput,
    tape: Any,
    *,
    steps: int,
    dtype: Any,
    method: GradientAccumulationReductionMethod,
) -> Any:
    """Return the operation that adds gradients, and applies them in the last step.

    Args:
        output: The loss of a micro-batch, and the optimizer.
        tape: The tape that has watched the stages.
        steps: How many micro-batches make one update.
        dtype: The type of the sums of gradients; None for theirs.
        method: Whether the sum of gradients is applied, or their mean.
    """
    if isinstance(output.opt, tf.compat.v1.train.Optimizer):
        accumulating = GradientAccumulationOptimizerV2(
            output.opt, steps, dtype=dtype, reduction_method=method
        )
        return accumulating.apply_gradients(
            output.opt.compute_gradients(
                output.loss,
                *(output.compute_gradients_args or ()),
                **(output.compute_gradients_kwargs or {}),
            ),
            *(output.apply_gradients_args or ()),
            **(output.apply_gradients_kwargs or {}),
        )
    tape = output.tape or tape
    variables = list(output.variables or tape.watched_variables())
    grads = tape.gradient(output.loss, variables)
    build_optimizer(output.opt, variables)
    pairs = list(zip(grads, variables, strict=True))
    return apply_accumulated(output.opt.apply_gradients, pairs, steps, dtype, method)


def _enqueue(
    queue: IPUOutfeedQueue | None, values: Any, *, steps: int, dtype: Any
) -> list[Any]:
    """Return the operation that enqueues outputs; none where there are none.

    Args:
        queue: The outfeed queue.
        values: The outputs.
        steps: How many micro-batches are added up.
        dtype: The type of the sums; None for the outputs'.
    """
    if not values:
        return []
    if queue is None:
        raise ValueError(
            "The last computational stage has outputs, but there is no outfeed_queue. "
            "Pass one to pipeline()."
        )
    if isinstance(values, list) and len(values) == 1:
        (values,) = values
    if steps == 1:
        return [queue.enqueue(values)]
    flat = tf.nest.flatten(values)
    sums = Accumulation(steps, flat, [dtype] * len(flat))
    return [
        sums.when_complete(
            lambda sums: queue.enqueue(tf.nest.pack_sequence_as(values, sums))
        )
    ]


def _masked(outputs: Any, mask: Sequence[bool] | None) -> Any:
    """Return a list or a dictionary of the tensors that are not masked."""
    if isinstance(outputs, dict):
        return outputs
    values = [value for value in as_list(outputs) if not is_operation(value)]
    if mask is None:
        return values
    if len(mask) != len(values):
        raise ValueError(
            f"outfeed_mask has {len(mask)} values, but there are {len(values)} outputs."
        )
    return [value for value, masked in zip(values, mask, strict=True) if not masked]
