"""The options for IPUs that Keras models have under IPU strategies."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any

import tensorflow as tf

import popdist
from popdist.tensorflow import PopDistStrategy
from popdist.tensorflow.extending import extend
from popdist.tensorflow.keras_training import strategy_of

from ..gradient_accumulation import (
    GradientAccumulationReductionMethod,
    check_count,
    parse_method,
)
from ..refusals import logger, refuse
from .optimizers import GradientAccumulationOptimizer

Model = Any
_SUM = GradientAccumulationReductionMethod.SUM


class _ModelOptions:
    """The methods for IPUs that Keras models get: `self` is a model."""

    def set_gradient_accumulation_options(
        self: Model,
        gradient_accumulation_steps_per_replica: int | None = None,
        experimental_normalize_gradients: bool | None = None,
        gradient_accumulation_reduction_method: Any = _SUM,
        dtype: Any = None,
        **gradient_accumulation_optimizer_kwargs: Any,
    ) -> None:
        """Let `fit` apply the sum of the gradients of several steps at once.

        Args:
            gradient_accumulation_steps_per_replica: How many steps; steps_per_execution
                has to be a multiple of it.
            experimental_normalize_gradients: Whether to apply their mean.
            gradient_accumulation_reduction_method: The same: SUM or MEAN.
            dtype: The type of the sums; None for the gradients'.
            gradient_accumulation_optimizer_kwargs: Where an IPU keeps the sums.
        """
        method = parse_method(gradient_accumulation_reduction_method)
        if experimental_normalize_gradients:
            method = GradientAccumulationReductionMethod.MEAN
        steps = gradient_accumulation_steps_per_replica or 1
        check_count("gradient_accumulation_steps_per_replica", steps)
        _remember(self, "_ipu_accumulation", (steps, method, dtype))

    def set_pipelining_options(
        self: Model,
        gradient_accumulation_steps_per_replica: int | None = None,
        device_mapping: Sequence[int] | None = None,
        accumulate_outfeed: bool | None = None,
        experimental_normalize_gradients: bool | None = None,
        gradient_accumulation_reduction_method: Any = _SUM,
        gradient_accumulation_dtype: Any = None,
        **pipelining_kwargs: Any,
    ) -> None:
        """Do the same; the stages of a model are its layers, one after the other.

        Args:
            gradient_accumulation_steps_per_replica: See the method above.
            device_mapping: The IPU of each stage.
            accumulate_outfeed: Whether an IPU returns sums of metrics.
            experimental_normalize_gradients: See the method above.
            gradient_accumulation_reduction_method: See the method above.
            gradient_accumulation_dtype: The type of the sums.
            pipelining_kwargs: Options of `pipelining_ops.pipeline` for the chip.
        """
        self.set_gradient_accumulation_options(
            gradient_accumulation_steps_per_replica,
            experimental_normalize_gradients,
            gradient_accumulation_reduction_method,
            gradient_accumulation_dtype,
        )

    def set_pipeline_stage_assignment(self: Model, assignment: Sequence[Any]) -> None:
        """Keep the stage of each layer; all are computed by the same CPU."""
        _remember(self, "_ipu_stages", list(assignment))

    def get_pipeline_stage_assignment(self: Model) -> list[Any]:
        """Return what was set."""
        stages: list[Any] = getattr(self, "_ipu_stages", [])
        return stages

    def reset_pipeline_stage_assignment(self: Model) -> None:
        """Forget the stages of layers."""
        _remember(self, "_ipu_stages", [])

    def print_pipeline_stage_assignment_summary(
        self: Model,
        line_length: int | None = None,
        print_fn: Callable[[str], object] | None = None,
    ) -> None:
        """Print the stage of each layer."""
        show = print_fn or print
        stages = self.get_pipeline_stage_assignment()
        for layer, stage in zip(self.layers, stages, strict=False):
            show(f"{layer.name}: stage {getattr(stage, 'pipeline_stage', stage)}")

    def set_asynchronous_callbacks(self: Model, asynchronous: bool = False) -> None:
        """Leave callbacks as they are: they are called when a step has ended."""

    def set_infeed_queue_options(self: Model, **kwargs: Any) -> None:
        """Leave the queues of a model as they are: it takes batches from memory."""

    set_outfeed_queue_options = set_replication_options = set_infeed_queue_options

    def export_for_ipu_serving(self: Model, *_: Any, **__: Any) -> None:
        """Refuse to export an executable for IPUs."""
        refuse("export_for_ipu_serving", "use tf.saved_model.save.")


def execute_any_steps(model: Model) -> None:
    """Let sums of gradients go on from one execution to the next.

    In releases that had models of their own, steps_per_execution was no option.
    """
    _remember(model, "_ipu_executes_any_steps", True)


# The classes that train and evaluate models, of Keras 3 and tf_keras.
_TRAINERS = ("TensorFlowTrainer", "Model")


def add_to_models() -> None:
    """Give all Keras models the methods, as IPU strategies do."""
    models = tf.keras.Model
    if hasattr(models, "set_pipelining_options"):
        return
    for name, method in vars(_ModelOptions).items():
        if not name.startswith("_"):
            setattr(models, name, method)
    for trainer in _TRAINERS:
        extend(f"{trainer}.make_train_function", _make_prepared)
        for name in ("fit", "evaluate", "predict"):
            extend(f"{trainer}.{name}", _count_batches)


def _make_prepared(
    make: Callable[..., Any], model: Model, *args: Any, **kwargs: Any
) -> Any:
    _prepare(model)
    return make(model, *args, **kwargs)


def _count_batches(
    method: Callable[..., Any], model: Model, *args: Any, **kwargs: Any
) -> Any:
    """Call a method of a model with numbers of steps, for which it is given batches.

    Programs for IPUs count the batches of an instance. Each local replica of a
    PopDistStrategy takes one in a step.
    """
    strategy = strategy_of(model)
    # fit() evaluates with the steps that it was called with.
    is_within_fit = kwargs.get("_use_cached_eval_dataset", False)
    if is_within_fit or not isinstance(strategy, PopDistStrategy):
        return method(model, *args, **kwargs)
    given = signature(method).bind(model, *args, **kwargs)
    for name in ("steps_per_epoch", "validation_steps", "steps"):
        if given.arguments.get(name) is not None:
            given.arguments[name] = _steps_of(name, given.arguments[name])
    counted = "steps_per_epoch" if "epochs" in given.signature.parameters else "steps"
    steps = given.arguments.get(counted)
    with _executions_within(model, steps):
        return method(*given.args, **given.kwargs)


@contextmanager
def _executions_within(model: Model, steps: int | None) -> Iterator[None]:
    """Let no execution of Keras 3 go beyond the steps that a method was called with.

    The others count as Graphcore's Keras did: an execution ends with the epoch.
    """
    per_execution = getattr(model, "steps_per_execution", None)
    if steps is None or not isinstance(per_execution, int):
        yield
        return
    if per_execution <= steps:
        if steps % per_execution:
            raise ValueError(
                f"steps_per_execution is {per_execution}, but must divide the {steps} "
                "steps of a replica, or Keras 3 would make more of them."
            )
        yield
        return
    logger.warning(
        "steps_per_execution is %d, but a replica has %d steps: these are one "
        "execution.",
        per_execution,
        steps,
    )
    _set_executions(model, steps)
    try:
        yield
    finally:
        _set_executions(model, per_execution)


def _set_executions(model: Model, steps: int) -> None:
    model.steps_per_execution = steps
    # Traced functions have the earlier number.
    model.train_function = model.test_function = model.predict_function = None


def _steps_of(name: str, batches: int) -> int:
    replicas = popdist.getNumLocalReplicas()
    if batches % replicas:
        raise ValueError(
            f"{name} is {batches}, but must be a multiple of the {replicas} local "
            "replicas: programs for tensorflow.python.ipu count batches, of which each "
            "local replica takes one in a step."
        )
    return batches // replicas


def _remember(model: Model, name: str, value: object) -> None:
    # Not as Keras does, which makes lists and dictionaries a part of the model.
    object.__setattr__(model, name, value)


def _prepare(model: Model) -> None:
    """Let the optimizer of a model accumulate, before its training step is traced."""
    options = getattr(model, "_ipu_accumulation", (1, _SUM, None))
    steps, method, dtype = options
    optimizer = model.optimizer
    earlier = getattr(optimizer, "_ipu_accumulates", None)
    if options == earlier or (steps == 1 and earlier is None):
        return
    if earlier is not None:
        raise ValueError(
            f"The model's optimizer accumulates the gradients of {earlier[0]} steps "
            "already, with options that cannot be changed. Compile the model with a "
            "new optimizer."
        )
    steps_per_execution = getattr(model, "_steps_per_execution", None)
    if steps_per_execution is None:
        steps_per_execution = model.steps_per_execution
    # A variable of a strategy is no number.
    number = int(tf.convert_to_tensor(steps_per_execution))
    if number % steps and not getattr(model, "_ipu_executes_any_steps", False):
        raise ValueError(
            f"steps_per_execution is {number}, but must be a multiple of the {steps} "
            "steps of which gradients are accumulated."
        )
    GradientAccumulationOptimizer(
        optimizer, steps, dtype=dtype, reduction_method=method
    )
    object.__setattr__(optimizer, "_ipu_accumulates", options)
    # Functions that were traced before do not accumulate.
    model.train_function = None
