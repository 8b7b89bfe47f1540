"""Calls of Python functions on tensors' memory: eagerly, in tf.function and sessions.

Gradients do not pass through them by themselves: see tf.custom_gradient.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from popdist.engine._core import address_of
from popdist.engine.calls.array_rows import Array
from popdist.tensorflow.tensors.memory import (
    Tensor,
    memory_of,
    objects_error,
    tensor_of,
)
from popdist.tensorflow.tensors.registration import (
    KernelFunction,
    add_call,
    add_operation,
)

# A function that makes a call: it returns new arrays, and only reads the tensors'
# arrays.
Function = Callable[[list[Array]], Sequence[Array]]


# The dtypes of tensors that have no numbers.
_OBJECTS = (tf.string, tf.variant, tf.resource)

# The name of a placeholder for an eager tensor that a function captures: it has a
# number that this process's TensorFlow counts.
_CAPTURE = re.compile(r"(?<![^/])\d+(_\d+)*(?![^:/])")


@tf.autograph.experimental.do_not_convert
def call_in_order(
    function: Function, tensors: Sequence[Tensor], specs: Sequence[tf.TensorSpec]
) -> list[Tensor]:
    """Return the tensors that a function makes of tensors, in the program's order.

    In a tf.function all calls of this kind are made one after the other, in the order
    in which they were traced. Graphs of sessions have no such order: see call_by_name.

    Args:
        specs: The dtype and shape of each result.
    """
    if tf.executing_eagerly():
        return _tensors_of(function(_arrays_of(tensors)))
    check_graph(tensors)
    dtypes = [spec.dtype for spec in specs]
    # TensorFlow orders operations that use one resource, with the conditions and
    # functions around them. It does not order conditions that only contain stateful
    # operations.
    return _with_shapes(_add_call(function, tensors, dtypes, call_order()), specs)


def _add_call(
    function: Function,
    tensors: Sequence[Tensor],
    dtypes: Sequence[tf.DType],
    order: Tensor,
) -> list[Tensor]:
    """Add an operation that calls a function, and return its results.

    Args:
        dtypes: The dtypes of the results.
        order: A resource: TensorFlow orders the operations of a tf.function by it.
    """
    key = add_call(_on_memory(function, tensors, dtypes))
    return add_operation(
        "PopdistCall", order=order, tensors=list(tensors), U=list(dtypes), key=key
    )


def _on_memory(
    function: Function, tensors: Sequence[Tensor], dtypes: Sequence[tf.DType]
) -> KernelFunction:
    """Return a function that carries out the calls of a PopdistCall.

    Args:
        tensors: Some of the dtypes that the calls are given.
        dtypes: The dtypes of their results.
    """
    input_dtypes = [np.dtype(tensor.dtype.as_numpy_dtype) for tensor in tensors]
    result_dtypes = [np.dtype(dtype.as_numpy_dtype) for dtype in dtypes]

    # Any: an object that has the memory of a tensor.
    def call(*inputs: tuple[Any, tuple[int, ...]]) -> list[tuple[Any, ...]]:
        arrays = [
            np.ndarray(shape, dtype, memory)
            for dtype, (memory, shape) in zip(input_dtypes, inputs, strict=True)
        ]
        results = []
        outputs = function(arrays)
        for result, dtype, kind in zip(outputs, result_dtypes, dtypes, strict=True):
            if result.dtype != dtype:
                raise TypeError(f"A result is of {result.dtype}, but must be {dtype}.")
            array = np.asarray(result, order="C")
            number = kind.as_datatype_enum
            place = address_of(array), array.nbytes
            results.append((array, *place, number, array.shape))
        return results

    return call


@tf.autograph.experimental.do_not_convert
def call_by_name(
    function: Function, tensors: Sequence[Tensor], specs: Sequence[tf.TensorSpec]
) -> list[Tensor]:
    """Return the tensors of a function that gives its call a name, as others do.

    The calls of one graph may be made in another order than on other members, and any
    number of them at once.

    Args:
        specs: The dtype and shape of each result.
    """
    if tf.executing_eagerly():
        return _tensors_of(function(_arrays_of(tensors)))
    check_graph(tensors)
    # AutoGraph may have converted the program's part of it.
    function = tf.autograph.experimental.do_not_convert(function)

    # It is a separate tf.function: in the one around it, TensorFlow orders operations
    # by the resources that they use, and the others among themselves.
    @tf.function(autograph=False)
    def call(_: Tensor, *inputs: Tensor) -> Any:
        return _call_on_thread(function, inputs, [spec.dtype for spec in specs])

    return _with_shapes(call(_resource(), *tensors), specs)


def name_of(tensor: Tensor) -> str:
    """Return the name of a graph's tensor, equal on instances that trace alike."""
    # A constant has no name.
    return _CAPTURE.sub("captured", getattr(tensor, "name", "constant"))


def unique_name(name: str) -> str:
    """Return a name that no other call of a session's graph has.

    The functions in it, such as the bodies of two loops, may run at once. The functions
    in a tf.function run in order: there the name is unique in the function itself.
    """
    graph = tf.compat.v1.get_default_graph()
    if not tf.compat.v1.executing_eagerly_outside_functions():
        while isinstance(graph, FuncGraph):
            graph = graph.outer_graph
    return str(graph.unique_name(name))


def zeros_after(tensor: Tensor) -> Tensor:
    """Return zeros like a tensor, for which a session's graph computes the tensor.

    Where a call makes it, the other instances wait for the call.
    """
    with tf.control_dependencies([tensor]):
        return tf.identity(tf.zeros_like(tensor))


def check_graph(tensors: Sequence[Tensor]) -> None:
    """Raise an error if a call on tensors cannot be made in the graph that is built.

    Raises:
        NotImplementedError: XLA compiles it.
        TypeError: A tensor has strings or other objects, which are not exchanged.
    """
    check_dtypes(tensors)
    if GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise NotImplementedError(
            "XLA compiles this function, but cannot compile popdist's collectives. "
            "Leave out jit_compile, or set it to False."
        )


def check_dtypes(tensors: Sequence[Tensor]) -> None:
    """Raise TypeError for a tensor of strings or other objects."""
    for tensor in tensors:
        if tensor.dtype in _OBJECTS:
            raise objects_error(tensor)


@cache
def call_order() -> Tensor:
    """Return the resource that all calls in the program's order use."""
    return _resource()


def _resource() -> Tensor:
    """Return a resource: a tf.function orders the operations that use it."""
    with tf.init_scope():
        return _resource_here()


def _resource_here() -> Tensor:
    """Return a resource of the graph that is built."""
    return tf.raw_ops.VarHandleOp(dtype=tf.bool, shape=(), shared_name="popdist")


def _call_on_thread(
    function: Function, tensors: Sequence[Tensor], dtypes: Sequence[tf.DType]
) -> Any:
    """Return the results of a call that does not occupy a thread of the graph.

    A graph may have one thread, and another of its operations may have to call first.
    Operations that fetch elements of a data set have a separate thread.
    """

    @tf.function(autograph=False)
    def call(_: Tensor, *inputs: Tensor) -> Any:
        return _add_call(function, inputs, dtypes, _resource_here())

    # A data set has one component or more.
    components = [tf.constant(0), *tensors]
    shapes = [tf.TensorShape(None)] * len(dtypes)
    specs = [tf.TensorSpec(each.shape, each.dtype) for each in components]
    element = tf.raw_ops.TensorDataset(
        components=components, output_shapes=[spec.shape for spec in specs]
    )
    results = tf.raw_ops.MapDataset(
        input_dataset=element,
        other_arguments=[],
        f=call.get_concrete_function(*specs),
        output_types=dtypes,
        output_shapes=shapes,
        use_inter_op_parallelism=False,
    )
    outputs = tf.raw_ops.DatasetToSingleElement(
        dataset=results, output_types=dtypes, output_shapes=shapes, name="popdist_end"
    )
    # TensorFlow would raise an error, because the operation has no gradient.
    return [tf.stop_gradient(output) for output in outputs]


def _arrays_of(tensors: Sequence[Tensor]) -> list[Array]:
    return [memory_of(tensor) for tensor in tensors]


def _tensors_of(arrays: Sequence[Array]) -> list[Tensor]:
    return [tensor_of(array) for array in arrays]


# Any: TensorFlow returns a list for a list, and an operation for none.
def _with_shapes(results: Any, specs: Sequence[tf.TensorSpec]) -> list[Tensor]:
    for result, spec in zip(results, specs, strict=True):
        result.set_shape(spec.shape)
    return list(results)
