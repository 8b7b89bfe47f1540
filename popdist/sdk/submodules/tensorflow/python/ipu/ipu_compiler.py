"""Compiles computations for an IPU: they become a part of the graph for the CPU."""

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.values import DistributedValues

import popdist
from popdist.tensorflow.strategy.extended import PopDistExtended

from .config import check_when_configured
from .loops import as_list, check_arguments, is_operation, split_outputs
from .replication import check_replicas
from .scopes import counted_shards
from .side_effects import recorded_side_effects


def compile(computation: Callable[..., Any], inputs: Any = None) -> Any:
    """Return what a computation returns, as a program for an IPU would.

    One tensor comes in a list. A computation that returns operations alone, or nothing,
    becomes an operation. Operations with side effects run with it, returned or not. In
    eager execution it runs at once, as a tf.function.

    Args:
        computation: The function, which takes the inputs.
        inputs: A list of its arguments.
    """
    arguments = as_list(inputs)
    check_arguments("computation", computation, len(arguments))
    if tf.executing_eagerly():
        return _run(computation, arguments)
    tensors = _tensors(arguments)
    runs = PopDistExtended.runs
    with counted_shards() as counts, recorded_side_effects() as side_effects:
        outputs = _with_groups(computation(*tensors))
    check_when_configured(partial(check_replicas, counts[0], _replicas_since(runs)))
    with tf.control_dependencies(side_effects):
        return _outputs(outputs)


def _tensors(arguments: list[Any]) -> list[Any]:
    return [
        value if isinstance(value, tf.Variable) else tf.convert_to_tensor(value)
        for value in arguments
    ]


def _run(computation: Callable[..., Any], arguments: list[Any]) -> Any:
    """Run a computation as a function, and return tensors alone."""

    @tf.function(autograph=False)
    def program(*tensors: Any) -> Any:
        runs = PopDistExtended.runs
        with counted_shards() as counts:
            outputs = _with_groups(computation(*tensors))
        check_replicas(counts[0], _replicas_since(runs))
        if isinstance(outputs, list | tuple | None) or is_operation(outputs):
            return split_outputs(outputs)[0]
        return [outputs] if tf.is_tensor(outputs) else outputs

    return program(*_tensors(arguments)) or None


def _replicas_since(runs: int) -> int:
    """Return how many replicas a computation has here: several in a strategy's run.

    Args:
        runs: How many runs there were before the computation.
    """
    return popdist.getNumLocalReplicas() if PopDistExtended.runs > runs else 1


def _with_groups(outputs: Any) -> Any:
    """Return outputs with one operation for the operations of local replicas."""

    def group(output: Any) -> Any:
        is_distributed = isinstance(output, DistributedValues)
        if is_distributed and is_operation(output.values[0]):
            return tf.group(*output.values)
        return output

    return tf.nest.map_structure(group, outputs)


def _outputs(outputs: Any) -> Any:
    """Return the outputs in a graph, after all operations that were returned."""
    if not (isinstance(outputs, list | tuple) or is_operation(outputs)):
        if tf.is_tensor(outputs):
            return [tf.identity(outputs)]
        return tf.nest.map_structure(tf.identity, outputs)
    if any(isinstance(value, list | tuple | dict) for value in as_list(outputs)):
        return tf.nest.map_structure(
            lambda value: value if is_operation(value) else tf.identity(value), outputs
        )
    tensors, operations = split_outputs(outputs)
    with tf.control_dependencies(operations):
        if not tensors:
            return tf.no_op()
        return [tf.identity(value) for value in tensors]
