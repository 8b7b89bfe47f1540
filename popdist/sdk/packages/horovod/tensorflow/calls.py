"""Calls on TensorFlow's tensors: eagerly, in tf.function and in sessions.

In a tf.function they are made in the order in which they were traced. A session's graph
makes calls in any order, and gives them names. Gradients flow through them: backward is
a call among the same ranks.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager.record import could_possibly_record
from tensorflow.python.framework.ops import (
    EagerTensor,
    executing_eagerly_outside_functions,
)

from popdist.engine.calls.array_rows import Array
from popdist.engine.spec.dtypes import DTYPES
from popdist.negotiation.call_requests import Kind
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

from ..common.calls.gradient_rules import GradientFunctions, gradients_of
from ..common.calls.library import NUMPY_ARRAYS
from ..common.calls.reduce_ops import Adasum, Average, Reduction
from ..common.calls.submission import (
    BASICS,
    CallArguments,
    HorovodHandle,
    TableReduction,
    TensorCalls,
)
from .errors import tensorflow_errors

# Any: tensors, variables, and what TensorFlow can turn into tensors.
TensorLike = Any
# Results become tensors without a copy.
TENSORFLOW_CALLS = TensorCalls(
    NUMPY_ARRAYS._replace(
        new=lambda shape, like: new_memory(shape, like.dtype),
        new_like=lambda arrays: new_memories([(a.shape, a.dtype) for a in arrays]),
    )
)


def tensor_from(value: TensorLike) -> Tensor:
    """Return a value as a tensor."""
    # TensorFlow takes 5 us to find out that it is one.
    return value if type(value) is EagerTensor else tf.convert_to_tensor(value)


def results_of(arguments: CallArguments, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Make a call and return its results, which have gradients.

    An alltoall takes one tensor, and returns the numbers of received rows, too. Without
    a name the call is matched eagerly by its number, and in a graph, as in Horovod, by
    the name of its first tensor.
    """
    if tf.executing_eagerly() and not could_possibly_record():
        return _make_call(arguments, tensors)

    @tf.custom_gradient
    def differentiable(*inputs: Tensor) -> Any:
        results = _make_call(arguments, inputs)

        def gradient(*grads: Tensor) -> Sequence[Tensor]:
            return gradients_of(arguments, _FUNCTIONS, grads, inputs, results)

        return results, gradient

    return list(differentiable(*tensors))


def _padded(grad: Tensor, source: Tensor) -> Tensor:
    rest = source[tf.shape(grad)[0] :]
    return tf.concat([grad, tf.zeros_like(rest, dtype=grad.dtype)], axis=0)


_FUNCTIONS = GradientFunctions(
    call=results_of,
    lengths=lambda tensors: tf.stack([[tf.shape(each)[0] for each in tensors]]),
    add_rows=lambda tensor: tf.reduce_sum(tensor, axis=0),
    zeros=zeros_after,
    padded=_padded,
    without_gradient="tf.stop_gradient(tensor)",
)


def number_of_call(begin: Callable[..., HorovodHandle]) -> Tensor:
    """Make a call without tensors, and return the number it results in; 0 for none."""

    def make(_: list[Array], *, now: bool) -> list[Array]:
        number = new_memory((), np.dtype(np.int32))
        number[...] = begin(now=now).wait() or 0
        return [number]

    return _carried_out(make, [], [tf.TensorSpec((), tf.int32)])[0]


def _make_call(arguments: CallArguments, tensors: Sequence[Tensor]) -> list[Tensor]:
    kind, given = arguments.kind, [*tensors]
    if not tf.executing_eagerly():
        arguments = arguments._replace(name=_name_in_graph(arguments, tensors))
    if kind is Kind.ALLREDUCE and _is_for_table(tensors, arguments.reduction):
        return _reduce_by_table(arguments, tensors)
    if arguments.splits is not None:
        given.append(arguments.splits)

    def make(arrays: list[Array], *, now: bool) -> list[Array]:
        exact = arguments
        if kind is Kind.ALLTOALL:
            exact = exact._replace(splits=arrays[1] if len(arrays) > 1 else None)
        handle = TENSORFLOW_CALLS.begin(exact, arrays[: len(tensors)], now=now)
        results: list[Array] = handle.wait()
        return results

    return _carried_out(make, given, _specs_of(arguments, tensors))


def _name_in_graph(arguments: CallArguments, tensors: Sequence[Tensor]) -> str:
    BASICS.check_registered(arguments.process_set)
    if arguments.name:
        return arguments.name
    tensor = re.sub("[^a-zA-Z0-9_]", "_", name_of(tensors[0]))
    return unique_name(f"Horovod{arguments.kind.name.capitalize()}_{tensor}")


def _reduce_by_table(
    arguments: CallArguments, tensors: Sequence[Tensor]
) -> list[Tensor]:
    """Return the ranks' tensors, reduced by popdist's operations in a graph."""
    layouts = [(each.dtype.name, _known_shape(each)) for each in tensors]
    reduce = TableReduction(
        layouts, arguments.name, arguments.reduction, arguments.process_set
    )
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


def _specs_of(
    arguments: CallArguments, tensors: Sequence[Tensor]
) -> list[tf.TensorSpec]:
    """Return the specs of a call's results, for a graph."""
    if tf.executing_eagerly():
        return []
    kind, process_set = arguments.kind, arguments.process_set
    if kind in (Kind.ALLREDUCE, Kind.BROADCAST):
        return [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
    specs = []
    for tensor in tensors:
        shape = tensor.shape
        if shape.rank:
            rows, length = shape[0], None
            if kind is Kind.REDUCESCATTER and rows is not None:
                member, size = process_set.rank() or 0, process_set.size() or 1
                length = even_share(rows, member, size).length
            shape = [length, *shape[1:]]
        specs.append(tf.TensorSpec(shape, tensor.dtype))
    if kind is Kind.ALLTOALL:
        specs.append(tf.TensorSpec((process_set.size(),), tf.int32))
    return specs
