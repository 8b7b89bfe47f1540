"""All-reduces of tensors in graphs, by operations that lead straight to the engine.

TensorFlow's own way to call Python from a graph costs microseconds for each tensor, and
so does each tensor that goes from one device to another. popdist's operations take all
tensors at once.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from popdist.tensorflow.tensors.memory import Tensor
from popdist.tensorflow.tensors.operation import call_order, check_graph
from popdist.tensorflow.tensors.registration import add_call, add_operation

# A function that reduces the arrays of tables, one of each dtype in the order of their
# first tensors: see popdist.engine.group.Group.all_reduce_table.
ReduceTables = Callable[..., None]


@tf.autograph.experimental.do_not_convert
def reduce_in_graph(
    reduce: ReduceTables,
    values: Sequence[Sequence[Tensor]],
    devices: Sequence[str],
    spread: bool,
) -> list[list[Tensor]]:
    """Return the reduction of each value, in a tf.function, in the program's order.

    Args:
        reduce: Reduces them, given where they lie.
        values: The tensor on each of the devices, for each value.
        spread: Return each result on each of the devices; else on the first one.
    """
    check_graph([tensors[0] for tensors in values])
    key = add_call(reduce)
    dtypes = [tensors[0].dtype for tensors in values]
    kinds = [*dict.fromkeys(dtypes)]
    # Tensors of one dtype stand side by side.
    order = sorted(range(len(values)), key=lambda index: kinds.index(dtypes[index]))
    first, *others = zip(*[values[index] for index in order], strict=True)
    bundles = []
    for device, tensors in zip(devices[1:], others, strict=True):
        with tf.device(device):
            bundles += add_operation("PopdistPack", tensors=list(tensors))
    with tf.device(devices[0]):
        outputs = add_operation(
            "PopdistReduce",
            order=call_order(),
            tensors=list(first),
            others=bundles,
            key=key,
        )
    parts = [outputs[: len(values)]]
    shared = outputs[len(values) :] if spread else []
    for device, bundle in zip(devices[1:], shared, strict=False):
        with tf.device(device):
            types = [dtypes[index] for index in order]
            parts.append(add_operation("PopdistUnpack", bundle=bundle, T=types))
    results: dict[int, list[Tensor]] = {}
    for index, *copies in zip(order, *parts, strict=True):
        for copy in copies:
            copy.set_shape(values[index][0].shape)
        results[index] = copies
    return [results[index] for index in range(len(values))]
