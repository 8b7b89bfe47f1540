"""Loops that take a batch from an infeed queue in each iteration."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf
from tensorflow.python.distribute.distribute_utils import regroup, select_replica

from popdist.tensorflow.strategy.extended import PopDistExtended

from .side_effects import recorded_side_effects

Body = Callable[..., Any]
# The arguments of a body: by position, and by name.
_Arguments = tuple[list[Any], Mapping[str, Any]]
# A body returns the next values, and operations to run.
_Outputs = tuple[list[Any], list[Any]]


class BatchQueue(Protocol):
    """The source of a loop's batches: an IPUInfeedQueue."""

    number_of_tuple_elements: int

    def _dequeue(self) -> Any: ...


def repeat(
    n: int,
    body: Body,
    inputs: Any = None,
    infeed_queue: BatchQueue | None = None,
    use_while_v1: bool = True,
) -> Any:
    """Return the values of a loop after a number of iterations.

    Args:
        n: How many iterations.
        body: Takes the values of the loop and one element of the queue, and returns the
            next values, and operations to run.
        inputs: The first values; None for a loop without values, which is an operation.
        infeed_queue: Where each iteration takes an element.
        use_while_v1: The loop of TensorFlow's to make in a graph, of two; TensorFlow
            decides here.
    """
    return while_loop(
        lambda *values: True, body, inputs, infeed_queue, maximum_iterations=n
    )


def while_loop(
    condition: Body,
    body: Body,
    inputs: Any = None,
    infeed_queue: BatchQueue | None = None,
    maximum_iterations: int | None = None,
    use_while_v1: bool = True,
) -> Any:
    """Return the values of a loop when a condition no longer holds.

    Args:
        condition: Takes the values of the loop, and returns whether to go on.
        body: See `repeat`.
        inputs: The first values; None for a loop without values, which is an operation.
        infeed_queue: Where each iteration takes an element.
        maximum_iterations: After how many iterations the loop ends in any case.
        use_while_v1: See `repeat`.
    """
    first = [_first_value(value) for value in as_list(inputs)]
    fed = infeed_queue.number_of_tuple_elements if infeed_queue is not None else 0
    check_arguments("loop body", body, len(first), fed)
    check_arguments("loop condition", condition, len(first))
    types = [value.dtype for value in first]

    def run(values: Sequence[Any], batch: _Arguments) -> _Outputs:
        args, kwargs = batch
        outputs, operations = split_outputs(body(*values, *args, **kwargs))
        output_types = [output.dtype for output in outputs]
        if output_types != types:
            raise TypeError(
                "Mismatch between input types and output types for loop body: "
                f"{types} vs {output_types}."
            )
        return outputs, operations

    if _is_in_run():
        count, *values = tf.distribute.get_replica_context().merge_call(
            _loop_together, (condition, run, first, infeed_queue, maximum_iterations)
        )
    else:
        count, *values = _loop(
            lambda values: condition(*values),
            lambda values: run(values, fed_arguments(infeed_queue)),
            first,
            maximum_iterations,
        )
    if not first:
        return count if tf.executing_eagerly() else tf.identity(count).op
    return values[0] if len(values) == 1 else values


def _loop(
    condition: Callable[[Sequence[Any]], Any],
    step: Callable[[Sequence[Any]], _Outputs],
    first: Sequence[Any],
    maximum_iterations: int | None,
) -> list[Any]:
    """Return the number of iterations, and the values after the last one.

    Args:
        step: Takes the values, and returns the next ones, and operations to run.
    """

    def body(count: Any, *values: Any) -> Any:
        with recorded_side_effects() as side_effects:
            outputs, operations = step(values)
        # The count depends on the operations of iterations without results.
        with tf.control_dependencies([*operations, *side_effects]):
            return [tf.identity(value) for value in (count + 1, *outputs)]

    results: list[Any] = tf.while_loop(
        lambda count, *values: condition(values),
        body,
        [tf.constant(0), *first],
        parallel_iterations=1,
        maximum_iterations=maximum_iterations,
    )
    return results


def _is_in_run() -> bool:
    """Return whether this is the graph of a local replica of a PopDistStrategy."""
    if tf.executing_eagerly() or tf.distribute.in_cross_replica_context():
        return False
    return isinstance(tf.distribute.get_strategy().extended, PopDistExtended)


def _loop_together(
    strategy: tf.distribute.Strategy,
    conditions: Any,
    runs: Any,
    first: Any,
    queues: Any,
    maximum_iterations: Any,
) -> Any:
    """Make one loop for all local replicas. Each iteration runs their bodies.

    A collective in the bodies takes tensors of all local replicas, and TensorFlow
    cannot connect tensors of two loops.

    Args:
        strategy: The strategy of the replicas. Each further argument has one value for
            each replica.
        conditions: Take the values of the loop.
        runs: Take the values and a batch, and return the next values and operations.
        first: The first values.
        queues: Where each iteration takes a batch.
        maximum_iterations: After how many iterations the loop ends in any case.
    """
    replicas = range(len(strategy.extended.worker_devices))

    def of_each(value: Any) -> list[Any]:
        return [select_replica(replica, value) for replica in replicas]

    def split(values: Sequence[Any]) -> list[list[Any]]:
        begins = [replica * len(first) for replica in replicas]
        return [list(values[begin : begin + len(first)]) for begin in begins]

    def condition(values: Sequence[Any]) -> Any:
        pairs = zip(of_each(conditions), split(values), strict=True)
        return _agreed([each(*own) for each, own in pairs])

    def step(values: Sequence[Any]) -> _Outputs:
        batches: list[_Arguments] = []
        for queue in of_each(queues):
            # The replicas take batches in their order.
            with tf.control_dependencies(tf.nest.flatten(batches)):
                batches.append(fed_arguments(queue))
        arguments = tuple(zip(split(values), batches, strict=True))
        outputs, operations = strategy.extended.call_for_each_replica(
            lambda run, values, batch: run(values, batch),
            (runs, *regroup(arguments, always_wrap=True)),
        )
        return (
            [output for own in of_each(outputs) for output in own],
            [operation for own in of_each(operations) for operation in own],
        )

    values = [value for own in of_each(first) for value in own]
    count, *results = _loop(
        condition, step, values, select_replica(0, maximum_iterations)
    )
    own = [[count, *values] for values in split(results)]
    return regroup(tuple(own), always_wrap=True)


def _agreed(conditions: Sequence[Any]) -> Any:
    """Return the condition of all local replicas, in a graph.

    Running the graph is an error where they differ: a replica in its next iteration
    would wait in collectives for a replica that has left the loop.
    """
    if all(each is True for each in conditions):
        return True
    every, some = tf.reduce_all(conditions), tf.reduce_any(conditions)
    message = (
        "The condition of a loop is true for some local replicas, and false for others."
        " Let it depend on what is equal on all replicas."
    )
    with tf.control_dependencies(
        [tf.debugging.Assert(tf.equal(every, some), [message])]
    ):
        return tf.identity(every)


def _first_value(value: Any) -> Any:
    return value if isinstance(value, tf.TensorArray) else tf.convert_to_tensor(value)


def as_list(values: Any) -> list[Any]:
    """Return one value or several as a list."""
    if values is None:
        return []
    return list(values) if isinstance(values, list | tuple) else [values]


def split_arguments(element: Any) -> _Arguments:
    """Return how an element of a queue is passed: a dictionary goes by its keys."""
    if isinstance(element, Mapping):
        return [], element
    elements = as_list(element)
    if len(elements) == 1 and isinstance(elements[0], Mapping):
        return [], elements[0]
    return elements, {}


def fed_arguments(infeed_queue: BatchQueue | None) -> _Arguments:
    """Return the next element of a queue, as arguments; none without a queue."""
    if infeed_queue is None:
        return [], {}
    return split_arguments(infeed_queue._dequeue())


def is_operation(value: object) -> bool:
    """Return whether a value is an operation to run, and none to return."""
    return value is None or isinstance(value, tf.Operation)


def split_outputs(outputs: Any) -> _Outputs:
    """Return the tensors and the operations that a function of a program returned.

    Raises:
        ValueError: A tensor comes after an operation.
    """
    every = as_list(outputs)
    tensors = [value for value in every if not is_operation(value)]
    if any(is_operation(value) for value in every[: len(tensors)]):
        raise ValueError(
            "A loop body or a computation must return tensors first, and then the "
            f"operations to run, but returned {every}."
        )
    operations = [value for value in every[len(tensors) :] if value is not None]
    return [_first_value(value) for value in tensors], operations


def check_arguments(what: str, function: Body, inputs: int, fed: int = 0) -> None:
    """Raise a TypeError if a function cannot take so many arguments.

    Args:
        what: Its name in the error.
        function: The function.
        inputs: How many inputs it gets.
        fed: How many more come from a queue; they may go by name.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    takes_names = any(
        each.kind == each.VAR_KEYWORD for each in signature.parameters.values()
    )
    try:
        if takes_names:
            signature.bind_partial(*range(inputs))
        else:
            signature.bind(*range(inputs + fed))
    except TypeError:
        queue = f" and {fed} from the infeed queue" if fed else ""
        raise TypeError(
            f"The {what} gets {inputs} inputs{queue}, but takes "
            f"{', '.join(signature.parameters) or 'none'}."
        ) from None
