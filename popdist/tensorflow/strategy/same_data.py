"""A warning where all instances train on the same data, and none on a part of it."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any

import numpy as np
import tensorflow as tf

from popdist.replicated.members import Members

logger = logging.getLogger("popdist.tensorflow")

# Whether Keras distributes a data set in the running call, which may be to evaluate it.
_BY_KERAS: ContextVar[bool] = ContextVar("popdist.by_keras", default=False)

_SOURCES = {
    "FixedLengthRecordDatasetV2",
    "TFRecordDataset",
    "TFRecordDatasetV2",
    "TensorSliceDataset",
    "TextLineDataset",
}
# The results of Python functions may depend on the instance.
_PYTHON = {"EagerPyFunc", "GeneratorDataset", "PyFunc", "PyFuncStateless"}
# How many rows of an array are compared.
_ROWS = 64
_UNKNOWN = 0
# The arrays of the largest data sets that are compared: they are copied three times.
_MOST_BYTES = 1 << 28
# TensorFlow would log a warning of random numbers and counters.
_IGNORE = tf.data.experimental.ExternalStatePolicy.IGNORE.value


@contextmanager
def distributed_by_keras() -> Iterator[None]:
    """Let data sets be distributed without a warning: fit has compared its data."""
    token = _BY_KERAS.set(True)
    try:
        yield
    finally:
        _BY_KERAS.reset(token)


def is_compared() -> bool:
    """Return whether data that a strategy distributes are compared: the program's."""
    return not _BY_KERAS.get()


def warn_of_same_data(members: Members, data: Any) -> None:
    """Warn on instance 0 if all instances have the same data. All must call this."""
    if members.instances is None or members.instances.size == 1:
        return
    fingerprints = members.gather(_fingerprint(data))
    is_same = _UNKNOWN not in fingerprints and len(set(fingerprints)) == 1
    if is_same and members.instances.rank == 0:
        logger.warning(
            "All %d instances read the same data, so each of them trains on all of "
            "it. Give each a part: dataset.shard(popdist.getNumInstances(), "
            "popdist.getInstanceIndex()), or for arrays x[popdist.getInstanceIndex()::"
            "popdist.getNumInstances()]; or call strategy.shard_datasets().",
            len(fingerprints),
        )


def _fingerprint(data: Any) -> int:
    """Return a number that data of two instances share only if they are the same.

    It is 0 for unread data, such as files' contents, and for equal rows: programs make
    these up to measure speed.
    """
    if isinstance(data, tf.data.Dataset):
        parts = _parts_of_dataset(data)
    else:
        arrays = [x for x in tf.nest.flatten(data) if x is not None]
        is_array = [isinstance(x, np.ndarray | tf.Tensor) and x.shape for x in arrays]
        parts = _parts_of_arrays(arrays) if arrays and all(is_array) else []
    if not parts:
        return _UNKNOWN
    digest = blake2b(b"".join(sorted(parts)), digest_size=7)
    return int.from_bytes(digest.digest()) + 1


def _parts_of_arrays(arrays: Sequence[Any]) -> list[bytes]:
    """Return digests of the first rows of arrays; none if the rows are equal."""
    first = [np.asarray(x[:_ROWS]) for x in arrays]
    if _has_equal_rows(first[0]):
        return []
    return [
        _digest(f"{index} {x.shape} {x.dtype}".encode(), rows.tobytes())
        for index, (x, rows) in enumerate(zip(arrays, first, strict=True))
    ]


def _parts_of_dataset(dataset: tf.data.Dataset) -> list[bytes]:
    """Return digests of the operations and constants that make a data set.

    Names of files and numbers of shards are constants. There are no digests if the data
    come from elsewhere, are large, or have equal rows.
    """
    if _bytes_in(dataset) > _MOST_BYTES:
        return []
    try:
        text = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset),
            external_state_policy=_IGNORE,
        ).numpy()
    except tf.errors.OpError:
        # TensorFlow cannot store it: it has resources, or more than 2 GiB.
        return []
    graph = tf.compat.v1.GraphDef.FromString(text)
    functions = graph.library.function
    nodes = [*graph.node, *(node for each in functions for node in each.node_def)]
    operations = {node.op for node in nodes}
    if operations & _PYTHON or not operations & _SOURCES:
        return []
    if operations & _SOURCES == {"TensorSliceDataset"} and _has_made_up_rows(graph):
        return []
    return [
        _digest(node.op.encode(), node.attr["value"].SerializeToString())
        for node in nodes
    ]


def _bytes_in(dataset: tf.data.Dataset) -> int:
    """Return how many bytes the arrays have that a data set is made of."""
    arrays = getattr(dataset, "_tensors", ())
    own = sum(x.dtype.size * (x.shape.num_elements() or 0) for x in arrays)
    return int(own) + sum(map(_bytes_in, dataset._inputs()))


def _has_made_up_rows(graph: Any) -> bool:
    """Return whether the first arrays of a graph's sources have equal rows."""
    constants = {
        node.name: node.attr["value"].tensor
        for node in graph.node
        if node.op == "Const"
    }
    first = [
        constants[node.input[0]]
        for node in graph.node
        if node.op == "TensorSliceDataset" and node.input[0] in constants
    ]
    is_number = [tensor.dtype != tf.string.as_datatype_enum for tensor in first]
    return all(is_number) and all(_has_equal_rows(tf.make_ndarray(x)) for x in first)


def _has_equal_rows(array: Any) -> bool:
    """Return whether an array has equal rows of numbers, as made-up data has."""
    return array.dtype.kind in "biufc" and bool((array == array[:1]).all())


def _digest(*parts: bytes) -> bytes:
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.digest()
