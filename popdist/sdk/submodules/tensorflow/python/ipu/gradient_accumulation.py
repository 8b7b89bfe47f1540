"""Sums of the gradients of several micro-batches, which persist between iterations."""

import enum
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from .refusals import refuse

Tensor = Any


class GradientAccumulationReductionMethod(enum.Enum):
    """The way to combine micro-batches' gradients before the weights change."""

    SUM = 0
    MEAN = 1
    RUNNING_MEAN = 2


def parse_method(method: Any) -> GradientAccumulationReductionMethod:
    """Return the reduction that an argument names: a value, its name, or its number."""
    methods = GradientAccumulationReductionMethod
    if isinstance(method, methods):
        return method
    name = str(method).upper()
    for each in methods:
        if name in (each.name, str(each.value)):
            return each
    raise ValueError(
        f"{method!r} is not a reduction of gradients. Choose one of "
        f"{', '.join(each.name for each in methods)}."
    )


def check_count(name: str, count: Any) -> int:
    """Return a number of micro-batches, after checking it."""
    if isinstance(count, bool) or not isinstance(count, int):
        refuse(
            f"{name} of {type(count).__name__}",
            "it must be an int, which is known when the graph is made.",
        )
    if count < 1:
        raise ValueError(f"{name} is {count}, but must be 1 or more.")
    return count


class Accumulation:
    """Sums of some tensors over a number of steps, kept in variables of their own.

    The variables stand in no collection of the graph and need no initialiser: the first
    step of each sum assigns to them.
    """

    def __init__(
        self, steps: int, tensors: Sequence[Tensor], dtypes: Sequence[Any]
    ) -> None:
        """Add tensors to the sums, in the graph at this place.

        Args:
            steps: How many steps a sum has.
            tensors: The tensors that one step adds.
            dtypes: The type of each sum; None for its tensor's.
        """
        if tf.executing_eagerly():
            refuse(
                "gradient accumulation in eager execution",
                "the sums belong to a graph. Call the optimizer in a tf.function.",
            )
        self._types = [tensor.dtype for tensor in tensors]
        variables = [
            _variable(tensor.shape, dtype or tensor.dtype)
            for tensor, dtype in zip(tensors, dtypes, strict=True)
        ]
        counter = _variable((), tf.int32)
        index = _value_or_zero(counter)
        first = tf.equal(index, 0)
        self._last = tf.equal(index, steps - 1)
        self._sums = [
            _sum(first, variable, tf.cast(tensor, variable.dtype))
            for variable, tensor in zip(variables, tensors, strict=True)
        ]
        # The sums are complete before they are kept, and the counter is read.
        with tf.control_dependencies([*self._sums, self._last]):
            next_index = tf.where(self._last, 0, index + 1)
            self._assignments = [
                variable.assign(total, read_value=False)
                for variable, total in zip(variables, self._sums, strict=True)
            ]
            self._assignments.append(counter.assign(next_index, read_value=False))

    def when_complete(self, use: Callable[[list[Tensor]], Tensor]) -> Tensor:
        """Return the operation that calls a function in the last step of each sum.

        Args:
            use: Takes the sums, and returns an operation.
        """
        sums = [
            tf.cast(total, kind)
            for total, kind in zip(self._sums, self._types, strict=True)
        ]
        replica = tf.distribute.get_replica_context()
        if tf.distribute.has_strategy() and replica is not None:
            # Replicas can meet where the graph has a branch, but not within one.
            used = replica.merge_call(_use_on_replicas, args=(use, sums, self._last))
        else:
            used = _use_if(self._last, lambda: use(sums))
        with tf.control_dependencies([used, *map(_operation, self._assignments)]):
            return tf.no_op()


def _use_on_replicas(
    strategy: tf.distribute.Strategy, use: Any, sums: Any, last: Any
) -> Tensor:
    """Let each replica use its sums, if they are complete, as all of them are then."""
    each = strategy.extended.call_for_each_replica
    return _use_if(
        strategy.experimental_local_results(last)[0],
        lambda: each(lambda use, sums: use(sums), args=(use, sums)),
    )


def _use_if(last: Tensor, use: Callable[[], Any]) -> Tensor:
    def complete() -> Tensor:
        with tf.control_dependencies([_operation(use())]):
            return tf.constant(True)

    return tf.cond(last, complete, lambda: tf.constant(False))


def apply_accumulated(
    apply: Callable[[list[tuple[Tensor, Any]]], Any],
    pairs: Sequence[tuple[Tensor, Any]],
    steps: int,
    dtype: Any,
    method: GradientAccumulationReductionMethod,
) -> Any:
    """Return the operation that adds gradients, and in the last step applies them.

    Args:
        apply: Takes pairs of sums and variables.
        pairs: Gradients and their variables; None for a variable without a gradient.
        steps: How many steps a sum has.
        dtype: The type of the sums, or a function that returns it for a variable; None
            for the gradients'.
        method: Whether the sums are applied, or means.
    """
    pairs = [(tf.convert_to_tensor(g), var) for g, var in pairs if g is not None]
    grads = [grad for grad, _ in pairs]
    variables = [variable for _, variable in pairs]
    if method is not GradientAccumulationReductionMethod.SUM:
        grads = [grad / tf.cast(steps, grad.dtype) for grad in grads]
    dtypes = [dtype] * len(pairs)
    # numpy's types are classes.
    if callable(dtype) and not isinstance(dtype, type):
        dtypes = [dtype(variable) for variable in variables]
    return Accumulation(steps, grads, dtypes).when_complete(
        lambda sums: apply(list(zip(sums, variables, strict=True)))
    )


def build_optimizer(optimizer: Any, variables: Sequence[Any]) -> None:
    """Make the state of a Keras optimizer, which no branch of a graph can make."""
    if hasattr(optimizer, "build") and not getattr(optimizer, "built", False):
        with tf.init_scope():
            optimizer.build(variables)


def _operation(value: Any) -> Any:
    """Return what can stand in control dependencies."""
    return tf.no_op() if value is None else value


def _variable(shape: Any, dtype: Any) -> Any:
    """Make a variable that no collection of variables knows, at any trace."""
    with tf.init_scope(), tf.device("/device:CPU:0"):
        # Not a tf.Variable: a tf.function allows those in its first trace only.
        variable = ResourceVariable(
            lambda: tf.zeros(shape, dtype),
            trainable=False,
            collections=[],
            dtype=dtype,
            name="accumulator",
        )
    # It lives as long as the function that uses it.
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        graph.add_to_collection("accumulators_of_gradients", variable)
        graph = getattr(graph, "outer_graph", None)
    return variable


def _value_or_zero(variable: Any) -> Tensor:
    """Return the value of a variable, or 0 if nothing has been assigned to it yet."""
    initialised = tf.raw_ops.VarIsInitializedOp(resource=variable.handle)
    zeros = tf.zeros(variable.shape, variable.dtype)
    return tf.cond(initialised, lambda: variable.read_value(), lambda: zeros)


def _sum(first: Tensor, variable: Any, tensor: Tensor) -> Tensor:
    return tf.cond(first, lambda: tensor, lambda: variable.read_value() + tensor)
