"""Calls on TensorFlow's tensors: eagerly, in tf.function and in sessions.

In a tf.function they are made in the order in which they were traced. A session's graph
makes calls in any order, and gives them names. Gradients flow through them: backward is
a call among the same ranks.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import tensorflow as tf
from tensorflow.python.eager.record import could_possibly_record
from tensorflow.python.framework.ops import (
    EagerTensor,
    executing_eagerly_outside_functions,
)

from popdist.engine.calls.array_rows import Array
from popdist.engine.spec.dtypes import DTYPES
from popdist.replicated.shares import even_share
from popdist.tensorflow.tensors.memory import Tensor, new_memories, new_memory
from popdist.tensorflow.tensors.operation import (
    call_by_name,
    call_in_order,
    name_of,
    unique_name,
    zeros_after,
)
from popdist.tensorflow.tensors.reduction import reduce_in_graph

from ..common.calls.gradient_rules import check_gradient, factor_of_scatter, is_root
from ..common.calls.library import NUMPY_ARRAYS
from ..common.calls.reduce_ops import Adasum, Average, Reduction
from ..common.calls.submission import (
    BASICS,
    HorovodHandle,
    TableReduction,
    TensorCalls,
)
from ..common.process_sets import ProcessSet
from .errors import InvalidArgumentError, tensorflow_errors

# Any: tensors, variables, and what TensorFlow can turn into tensors.
TensorLike = Any
# Makes a call on tensors.
Call = Callable[[Sequence[Tensor]], list[Tensor]]
# Returns the gradients of a call's tensors. It gets the gradients of the results, the
# tensors, and the results.
Gradient = Callable[
    [Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]
]

# Results become tensors without a copy.
TENSORFLOW_CALLS = TensorCalls(
    NUMPY_ARRAYS._replace(
        new=lambda shape, like: new_memory(shape, like.dtype),
        new_like=lambda arrays: new_memories([(a.shape, a.dtype) for a in arrays]),
    )
)


class Match(NamedTuple):
    """The name and the process set that match the ranks' calls."""

    name: str | None
    process_set: ProcessSet

    def of_gradient(self) -> Self:
        """Return what the call of a gradient is matched by."""
        return self._replace(name=None)


def tensor_from(value: TensorLike) -> Tensor:
    """Return a value as a tensor."""
    # TensorFlow takes 5 us to find out that it is one.
    return value if type(value) is EagerTensor else tf.convert_to_tensor(value)


def allreduce(
    tensors: Sequence[Tensor], reduction: Reduction, match: Match
) -> list[Tensor]:
    """Return tensors reduced; the gradients are reduced in the same way."""

    def call(inputs: Sequence[Tensor]) -> list[Tensor]:
        if _is_for_table(inputs, reduction):
            return _reduce_by_table(inputs, reduction, match)
        begin = partial(TENSORFLOW_CALLS.reduce, reduction=reduction)
        return _make_call("Allreduce", begin, inputs, _specs_of(inputs), match)

    def gradient(grads: Sequence[Tensor], *_: object) -> list[Tensor]:
        check_gradient("allreduce", reduction, "tf.stop_gradient(tensor)")
        return allreduce(grads, reduction, match.of_gradient())

    return _results_of(call, gradient, tensors)


def allgather(tensors: Sequence[Tensor], match: Match) -> list[Tensor]:
    """Return tensors gathered; the gradient is all ranks' average for the own rows.

    The derivative of what the ranks compute together would be the sum. Horovod 0.28
    averages, as it averages the gradients of a broadcast.
    """

    def call(inputs: Sequence[Tensor]) -> list[Tensor]:
        specs = [_with_length(tensor, None) for tensor in inputs]
        return _make_call("Allgather", TENSORFLOW_CALLS.gather, inputs, specs, match)

    def gradient(
        grads: Sequence[Tensor], inputs: Sequence[Tensor], _: object
    ) -> list[Tensor]:
        rows = tf.stack([tf.shape(tensor)[0] for tensor in inputs])
        (each,) = allgather([rows[tf.newaxis]], match.of_gradient())
        starts = tf.reduce_sum(each[: match.process_set.rank()], axis=0)
        averages = allreduce(grads, Reduction(Average), match.of_gradient())
        return [
            average[starts[index] : starts[index] + rows[index]]
            for index, average in enumerate(averages)
        ]

    return _results_of(call, gradient, tensors)


def broadcast(tensors: Sequence[Tensor], root_rank: int, match: Match) -> list[Tensor]:
    """Return the root's tensors; the gradients are the average there, else zero."""

    def call(inputs: Sequence[Tensor]) -> list[Tensor]:
        begin = partial(TENSORFLOW_CALLS.broadcast, root_rank=root_rank)
        return _make_call("Broadcast", begin, inputs, _specs_of(inputs), match)

    def gradient(grads: Sequence[Tensor], *_: object) -> list[Tensor]:
        averages = allreduce(grads, Reduction(Average), match.of_gradient())
        if is_root(root_rank, match.process_set):
            return averages
        return [zeros_after(average) for average in averages]

    return _results_of(call, gradient, tensors)


def alltoall(tensor: Tensor, splits: Tensor | None, match: Match) -> list[Tensor]:
    """Return rows exchanged, and how many each rank has sent.

    The gradients go back to the rows' senders.
    """

    def begin(arrays: list[Array], **arguments: Any) -> HorovodHandle:
        counts = arrays[1] if len(arrays) > 1 else None
        return TENSORFLOW_CALLS.exchange(arrays[:1], counts, **arguments)

    def call(inputs: Sequence[Tensor]) -> list[Tensor]:
        given = [*inputs] if splits is None else [*inputs, splits]
        counts = tf.TensorSpec((match.process_set.size(),), tf.int32)
        specs = [_with_length(inputs[0], None), counts]
        return _make_call("Alltoall", begin, given, specs, match)

    def gradient(
        grads: Sequence[Tensor], inputs: Sequence[Tensor], results: Sequence[Tensor]
    ) -> list[Tensor]:
        returned, _ = alltoall(grads[0], results[1], match.of_gradient())
        # Rows that went nowhere.
        rest = inputs[0][tf.shape(returned)[0] :]
        unsent = tf.zeros_like(rest, dtype=returned.dtype)
        return [tf.concat([returned, unsent], axis=0)]

    return _results_of(call, gradient, [tensor])


def reducescatter(
    tensors: Sequence[Tensor], reduction: Reduction, match: Match
) -> list[Tensor]:
    """Return this rank's rows of tensors reduced; the gradients are gathered."""
    if any(tensor.shape.rank == 0 for tensor in tensors):
        # AutoGraph keeps the types of Python's own errors alone.
        kind = InvalidArgumentError if tf.executing_eagerly() else ValueError
        raise kind(
            "A tensor of reducescatter has no dimensions, but needs a first one. "
            "Reshape it."
        )
    member, size = match.process_set.rank() or 0, match.process_set.size() or 1

    def length_of(tensor: Tensor) -> int | None:
        rows = tensor.shape[0] if tensor.shape.rank else None
        return None if rows is None else even_share(rows, member, size).length

    def call(inputs: Sequence[Tensor]) -> list[Tensor]:
        begin = partial(TENSORFLOW_CALLS.scatter, reduction=reduction)
        specs = [_with_length(tensor, length_of(tensor)) for tensor in inputs]
        return _make_call("Reducescatter", begin, inputs, specs, match)

    def gradient(grads: Sequence[Tensor], *_: object) -> list[Tensor]:
        check_gradient("reducescatter", reduction, "tf.stop_gradient(tensor)")
        factor = factor_of_scatter(reduction, match.process_set)
        scaled = [grad * tf.cast(factor, grad.dtype) for grad in grads]
        return allgather(scaled, match.of_gradient())

    return _results_of(call, gradient, tensors)


def number_of_call(begin: Callable[..., HorovodHandle]) -> Tensor:
    """Make a call without tensors, and return the number it results in; 0 for none."""

    def make(_: list[Array], *, now: bool) -> list[Array]:
        number = new_memory((), np.dtype(np.int32))
        number[...] = begin(now=now).wait() or 0
        return [number]

    return _carried_out(make, [], [tf.TensorSpec((), tf.int32)])[0]


def _results_of(
    call: Call, gradient: Gradient, tensors: Sequence[Tensor]
) -> list[Tensor]:
    """Make a call and return its results, which have gradients."""
    if tf.executing_eagerly() and not could_possibly_record():
        return call(tensors)

    @tf.custom_gradient
    def differentiable(*inputs: Tensor) -> Any:
        results = call(inputs)
        return results, lambda *grads: gradient(grads, inputs, results)

    return list(differentiable(*tensors))


def _make_call(
    kind: str,
    begin: Callable[..., HorovodHandle],
    tensors: Sequence[Tensor],
    specs: Sequence[tf.TensorSpec],
    match: Match,
) -> list[Tensor]:
    """Make a call that is matched by its name, or eagerly by its number without one."""
    is_eager = tf.executing_eagerly()
    name = match.name if is_eager else _name_in_graph(kind, tensors, match)

    def make(arrays: list[Array], *, now: bool) -> list[Array]:
        handle = begin(arrays, name=name, process_set=match.process_set, now=now)
        results: list[Array] = handle.wait()
        return results

    return _carried_out(make, tensors, specs)


def _name_in_graph(kind: str, tensors: Sequence[Tensor], match: Match) -> str:
    """Return the name of a call: its own or, as in Horovod, by its first tensor."""
    BASICS.check_registered(match.process_set)
    if match.name:
        return match.name
    tensor = re.sub("[^a-zA-Z0-9_]", "_", name_of(tensors[0]))
    return unique_name(f"Horovod{kind}_{tensor}")


def _reduce_by_table(
    tensors: Sequence[Tensor], reduction: Reduction, match: Match
) -> list[Tensor]:
    """Return the ranks' tensors, reduced by popdist's operations in a graph."""
    layouts = [(each.dtype.name, _known_shape(each)) for each in tensors]
    name = _name_in_graph("Allreduce", tensors, match)
    reduce = TableReduction(layouts, name, reduction, match.process_set)
    values = [[tensor] for tensor in tensors]
    device = ["/device:CPU:0"]
    results = reduce_in_graph(tensorflow_errors()(reduce), values, device, False)
    return [total for (total,) in results]


def _is_for_table(tensors: Sequence[Tensor], reduction: Reduction) -> bool:
    """Return whether popdist's operations can reduce tensors, in a graph.

    Nothing is to be done but to reduce them.
    """
    if tf.executing_eagerly() or not executing_eagerly_outside_functions():
        return False
    dtypes = {tensor.dtype for tensor in tensors}
    return (
        all(
            dtype.name in DTYPES and (dtype.is_floating or reduction.op is not Average)
            for dtype in dtypes
        )
        and reduction == Reduction(reduction.op)
        and reduction.op is not Adasum
    )


def _known_shape(tensor: Tensor) -> tuple[int, ...] | None:
    return tuple(tensor.shape) if tensor.shape.is_fully_defined() else None


def _carried_out(
    make: Callable[..., list[Array]],
    tensors: Sequence[Tensor],
    specs: Sequence[tf.TensorSpec],
) -> list[Tensor]:
    """Return what a function makes of tensors' arrays; sessions wait for it later."""
    is_ordered = executing_eagerly_outside_functions()
    function = partial(make, now=is_ordered)
    if tf.executing_eagerly():
        with tensorflow_errors():
            return call_in_order(function, tensors, specs)
    call = call_in_order if is_ordered else call_by_name
    return call(tensorflow_errors()(function), tensors, specs)


def _specs_of(tensors: Sequence[Tensor]) -> list[tf.TensorSpec]:
    """Return the specs of results with the shapes of tensors, for a graph."""
    if tf.executing_eagerly():
        return []
    return [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]


def _with_length(tensor: Tensor, length: int | None) -> tf.TensorSpec:
    """Return what a result is like: a tensor, but for its first dimension."""
    if tensor.shape.rank is None:
        return tf.TensorSpec(None, tensor.dtype)
    return tf.TensorSpec([length, *tensor.shape[1:]], tensor.dtype)
