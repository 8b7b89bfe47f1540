"""Reduce the logs of Keras's steps over all replicas of the job.

Keras reduces the logs of the local replicas. Under PopDistStrategy all replicas reduce
them first, in the call that aggregates the metrics at the end of the step.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from popdist.tensorflow.strategy.aggregation import widened
from popdist.tensorflow.tensors.memory import Tensor

# How Keras reduces the logs of the step that it makes; None outside of its steps.
REDUCTION: ContextVar[Any] = ContextVar("popdist.logs", default=None)
_MEAN, _SUM = tf.distribute.ReduceOp.MEAN, tf.distribute.ReduceOp.SUM


class _Step:
    """A model's function for a step, with reduced logs."""

    def __init__(self, function: Callable[..., Any], reduce_op: Any) -> None:
        self._function = function
        self._reduce_op = reduce_op

    def __call__(self, iterator: Any) -> Any:
        token = REDUCTION.set(self._reduce_op)
        try:
            return self._function(iterator)
        finally:
            REDUCTION.reset(token)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


def make_step(
    reduce_op: Any,
    strategy_class: type[Any],
    make: Callable[..., Any],
    model: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Make a model's function of steps, and return it.

    Args:
        reduce_op: How Keras reduces the logs of the local replicas.
        strategy_class: The class of strategies. All replicas reduce their logs.
        make: Makes the function, which is an attribute of the model.
        model: The model, which is followed by the arguments of `make`.
    """
    make(model, *args, **kwargs)
    name = make.__name__.removeprefix("make_")
    function = getattr(model, name)
    # Both Kerases make it once, and keep it.
    if isinstance(model.distribute_strategy, strategy_class) and not isinstance(
        function, _Step
    ):
        setattr(model, name, _Step(function, reduce_op))
    return getattr(model, name)


def record_merged(
    strategy_class: type[Any],
    merge_call: Callable[..., Any],
    context: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Record what a replica gets from a merge_call: it is equal on all of them."""
    result = merge_call(context, *args, **kwargs)
    if isinstance(context.strategy, strategy_class):
        context.strategy.extended.merged.append(result)
    return result


@tf.autograph.experimental.do_not_convert
def logs_in(result: Any, merged: Sequence[Any]) -> dict[int, Tensor]:
    """Return the numbers that a replica has computed itself, by place in its result.

    Args:
        result: The replica's result.
        merged: Results that are equal on all replicas.
    """
    alike = {id(each) for each in tf.nest.flatten(merged)}
    return {
        index: each
        for index, each in enumerate(tf.nest.flatten(result))
        if isinstance(each, tf.Tensor)
        and each.shape.rank == 0
        and (each.dtype.is_floating or each.dtype.is_integer)
        and id(each) not in alike
    }


@tf.autograph.experimental.do_not_convert
def summands_of(logs: Mapping[int, Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return what the replicas sum for their logs: whether there are some, and these.

    A replica that has no samples in the last step has no logs.

    Args:
        logs: The logs of a replica.
        inputs: The tensors of its step.
    """
    if not logs:
        return []
    batch = next((each for each in inputs if each.shape.rank), None)
    has_rows = tf.constant(True) if batch is None else tf.shape(batch)[0] > 0
    wide = [widened(each) for each in logs.values()]
    return [
        tf.cast(has_rows, tf.float32),
        *[tf.where(has_rows, each, tf.zeros_like(each)) for each in wide],
    ]


@tf.autograph.experimental.do_not_convert
def logs_of_sums(reduce_op: Any, sums: Sequence[Tensor]) -> list[Tensor]:
    """Return the logs, by the sums of summands_of()."""
    if reduce_op is _SUM or not sums:
        return list(sums[1:])
    replicas, *totals = sums
    return [
        each / tf.cast(replicas, each.dtype)
        if each.dtype.is_floating
        else each // tf.cast(replicas, each.dtype)
        for each in totals
    ]


@tf.autograph.experimental.do_not_convert
def with_logs(result: Any, places: Iterable[int], logs: Sequence[Tensor]) -> Any:
    """Return a result with other logs at these places."""
    flat = tf.nest.flatten(result)
    for place, log in zip(places, logs, strict=True):
        flat[place] = log
    return tf.nest.pack_sequence_as(result, flat)
