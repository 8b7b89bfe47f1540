"""Measures how fast a data set delivers its elements."""

import json
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from .ipu_infeed_queue import IPUInfeedQueue


def dataset_benchmark(
    dataset: Any,
    number_of_epochs: int,
    elements_per_epochs: int,
    print_stats: bool = True,
    apply_debug_options: bool = True,
    do_memcpy: bool = True,
) -> Any:
    """Return a vector of one JSON text on all epochs: elements, bytes and seconds.

    Args:
        dataset: The data set.
        number_of_epochs: How many epochs.
        elements_per_epochs: How many elements each has.
        print_stats: Whether to print a line on each epoch.
        apply_debug_options: Whether the original turns optimisations off.
        do_memcpy: Whether it copies each element, as for a chip.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            "Expected `dataset` argument to be of type `tf.data.Dataset`, but got "
            f"{dataset} instead."
        )
    for name, value in (
        ("number_of_epochs", number_of_epochs),
        ("elements_per_epochs", elements_per_epochs),
    ):
        if value < 1:
            raise ValueError(f"Expected `{name}` to be at least 1.")
    sizes = [
        spec.shape.num_elements() * spec.dtype.size
        for spec in tf.nest.flatten(dataset.element_spec)
    ]

    def report(times: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, Any]:
        if 0 in sizes:
            # TensorFlow raises an InvalidArgumentError for it.
            raise ValueError(
                "Detected a tensor in the dataset with a dimension of size 0: there is "
                "nothing to measure. Leave it out."
            )
        seconds = np.diff(times).tolist()
        text = _text(seconds, elements_per_epochs, sum(sizes), print_stats)
        return np.array([text.encode()])

    elements = number_of_epochs * elements_per_epochs
    times = _times(dataset, elements)[::elements_per_epochs]
    text = tf.numpy_function(report, [times], tf.string)
    text.set_shape([1])
    return text


def infeed_benchmark(
    infeed_queue: IPUInfeedQueue,
    number_of_epochs: int,
    elements_per_epochs: int,
    print_stats: bool = True,
    do_memcpy: bool = True,
) -> Any:
    """Return the same for the data set of a queue; see `dataset_benchmark`."""
    if not isinstance(infeed_queue, IPUInfeedQueue):
        raise TypeError(
            "Expected `infeed_queue` argument to be of type `IPUInfeedQueue`, but got "
            f"{infeed_queue} instead."
        )
    return dataset_benchmark(
        infeed_queue._dataset, number_of_epochs, elements_per_epochs, print_stats
    )


def _times(dataset: Any, elements: int) -> Any:
    """Return the time before the first element, and after each element."""
    start = tf.timestamp()
    stamps = dataset.take(elements).map(lambda *_: tf.timestamp()).batch(elements)
    with tf.control_dependencies([start]):
        return tf.concat([[start], stamps.get_single_element()], 0)


def _text(seconds: list[float], elements: int, nbytes: int, each_epoch: bool) -> str:
    epochs = [
        {
            "elements_processed": elements,
            "total_bytes_processed": elements * nbytes,
            "time_elapsed": each,
            "elements_per_second": elements / each,
            "bandwidth": elements * nbytes / each / 1e9,
        }
        for each in seconds
    ]
    for number, epoch in enumerate(epochs if each_epoch else ()):
        print(f"Epoch {number}: {json.dumps(epoch)}", file=sys.stderr)
    return json.dumps({"epochs": epochs})
