"""The steps of both Kerases, where local replicas take a batch each.

Keras counts one step for each batch of a data set, and would run into the end of data
sets that PopDistStrategy distributes. The functions here count steps, choose the batch
with which Keras 3 builds a model, and let steps reduce their logs: see keras_logs.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from popdist.tensorflow.extending import extends
from popdist.tensorflow.strategy.datasets import fewest_of, steps_of
from popdist.tensorflow.strategy.extended import is_popdist
from popdist.tensorflow.strategy.keras_logs import REDUCTION
from popdist.tensorflow.strategy.same_data import distributed_by_keras


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


@extends(
    "TensorFlowTrainer.make_train_function",
    "TensorFlowTrainer.make_test_function",
    "Model.make_train_function",
    "Model.make_test_function",
)
def make_step(make: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Make a model's function of steps, and return it.

    Args:
        make: Makes the function, which is an attribute of the model.
        model: The model, which is followed by the arguments of `make`.
    """
    make(model, *args, **kwargs)
    name = make.__name__.removeprefix("make_")
    function = getattr(model, name)
    # Both Kerases make it once, and keep it.
    if is_popdist(model.distribute_strategy) and not isinstance(function, _Step):
        # Keras reduces the logs of local replicas in the same way.
        is_keras_3 = make.__module__.startswith("keras.")
        ops = tf.distribute.ReduceOp
        setattr(model, name, _Step(function, ops.MEAN if is_keras_3 else ops.SUM))
    return getattr(model, name)


class _Adapter:
    """An adapter of Keras for data, with some attributes replaced."""

    def __init__(self, adapter: Any, **attributes: Any) -> None:
        self.__dict__.update(attributes)
        self._adapter = adapter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)


@extends("TensorFlowTrainer._maybe_symbolic_build")
def build_with_batch(
    build: Callable[..., None], model: Any, iterator: Any = None, data_batch: Any = None
) -> None:
    """Build a model of Keras 3 with the first batch of local data alone.

    Keras would build it with the mean of the first batches of all replicas, which may
    differ in their shapes.
    """
    strategy = model._distribute_strategy
    if iterator is None or not is_popdist(strategy):
        build(model, iterator, data_batch)
        return
    _, _, batches = next(iter(iterator))
    batch = next(batches, None)
    if batch is None:
        raise ValueError(
            "An instance has data without a batch, so that no step can be made. Give "
            "each instance one batch or more."
        )
    local = strategy.experimental_local_results
    build(model, None, tf.nest.map_structure(lambda each: local(each)[0], batch))


@extends("TFEpochIterator.__init__")
def make_epoch_iterator(
    make: Callable[..., None],
    iterator: Any,
    distribute_strategy: Any = None,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Make an iterator of Keras 3, which counts steps."""
    if not is_popdist(distribute_strategy):
        make(iterator, distribute_strategy, *args, **kwargs)
        return
    # The data set of arrays is made for the strategy.
    with distribute_strategy.scope(), distributed_by_keras():
        make(iterator, distribute_strategy, *args, **kwargs)
    dataset = iterator._distributed_dataset
    if _counts(dataset):
        adapter = iterator.data_adapter
        steps = _steps_of(dataset, adapter.num_batches)
        iterator.data_adapter = _Adapter(adapter, num_batches=steps)
        iterator._num_batches = steps


@extends("ArrayDataAdapter.get_tf_dataset")
def dataset_of_arrays(
    make: Callable[[Any], tf.data.Dataset], adapter: Any
) -> tf.data.Dataset:
    """Return the data set that Keras 3 makes of arrays, for steps of all rows.

    Keras gives batches a fixed shape where they divide the rows. Steps of such batches
    are complete, so rows would be left out of training, and of predictions.
    """
    dataset = make(adapter)
    return _with_any_rows(dataset) if _leaves_batches(adapter.num_batches) else dataset


@extends("DataHandler._configure_dataset_and_inferred_steps")
def configure_steps(
    configure: Callable[..., None],
    handler: Any,
    strategy: Any,
    x: Any,
    steps_per_epoch: int | None,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Configure a DataHandler of tf_keras, which counts steps."""
    adapter, batches = handler._adapter, handler._adapter.get_size()
    if (
        steps_per_epoch is None
        and not adapter.should_recreate_iterator()
        and _leaves_batches(batches)
    ):
        replicas = len(tf.distribute.get_strategy().extended.worker_devices)
        dataset = _with_whole_steps(adapter.get_dataset(), batches, replicas)
        handler._adapter = _Adapter(adapter, get_dataset=lambda: dataset)
    with distributed_by_keras():
        configure(handler, strategy, x, steps_per_epoch, *args, **kwargs)
    dataset = handler._dataset
    if _counts(dataset) and handler._steps_per_epoch is None:
        handler._inferred_steps = _steps_of(dataset, batches)


def _leaves_batches(batches: int | None) -> bool:
    """Return whether the last step has fewer batches than there are local replicas."""
    strategy: Any = tf.distribute.get_strategy()
    if not is_popdist(strategy):
        return False
    return bool((batches or 0) % len(strategy.extended.worker_devices))


def _with_whole_steps(
    dataset: tf.data.Dataset, batches: int, replicas: int
) -> tf.data.Dataset:
    """Return a data set in which empty batches complete the last step of each epoch.

    tf_keras has one data set for all epochs. A new iterator for each epoch would
    shuffle the rows of all epochs alike if the program has set a seed.

    Args:
        dataset: The data set.
        batches: How many batches an epoch has.
        replicas: How many batches a step has.
    """

    def filled(number: Any, batch: Any) -> tf.data.Dataset:
        is_last = tf.cast((number + 1) % batches == 0, tf.int64)
        empty = tf.nest.map_structure(lambda x: x if x is None else x[:0], batch)
        missing = tf.data.Dataset.from_tensors(empty).repeat(
            is_last * (-batches % replicas)
        )
        return tf.data.Dataset.from_tensors(batch).concatenate(missing)

    return _with_any_rows(dataset).enumerate().flat_map(filled)


def _with_any_rows(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return a data set with the same batches, in a shape of any number of rows."""

    # Any: a structure may contain None and sparse tensors.
    def relax(x: Any) -> Any:
        if not isinstance(x, tf.Tensor):
            return x
        return tf.compat.v1.placeholder_with_default(x, [None, *x.shape[1:]])

    return dataset.map(lambda *batch: tf.nest.map_structure(relax, batch))


def _counts(dataset: Any) -> bool:
    """Return whether a strategy that extends Keras distributes a data set."""
    if not is_popdist(getattr(dataset, "_strategy", None)):
        return False
    return bool(dataset._strategy.extended.extends_keras)


def _steps_of(dataset: Any, batches: int | None) -> int | None:
    """Return how many steps a distributed data set has; None if it is not known.

    Args:
        dataset: The data set.
        batches: The number of batches that Keras knows; TensorFlow may not know it. All
            instances use the smallest number of an instance.
    """
    workers = dataset._input_workers
    replicas = len(workers.compute_devices_for_worker(0))
    partial = dataset._enable_get_next_as_optional
    known = int(dataset.cardinality)
    if known != tf.data.UNKNOWN_CARDINALITY:
        steps = steps_of(known, replicas, partial=partial)
    else:
        own = tf.data.INFINITE_CARDINALITY if batches is None else batches
        members = dataset._strategy.extended.members
        steps = fewest_of(members.gather(steps_of(own, replicas, partial=partial)))
    return None if steps < 0 else steps
