"""How many steps an epoch of Keras has, where local replicas take a batch each.

Keras counts one step for each batch of the data set that it is given, and runs into its
end. Both Kerases are taught otherwise where they are imported, for data sets that
PopDistStrategy distributes, as is Keras 3 which batch it builds a model with.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from popdist.tensorflow.strategy.datasets import fewest_of, steps_of
from popdist.tensorflow.strategy.extending import extend


class _Adapter:
    """A data adapter of Keras's, which counts steps in place of batches."""

    def __init__(self, adapter: Any, steps: int | None) -> None:
        self._adapter = adapter
        self.num_batches = steps

    # Any: adapters have attributes of many types.
    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)


def count_steps(strategy_class: type[Any]) -> None:
    """Let the Kerases that are imported count the steps of this class of strategies."""
    extend(
        "keras.src.backend.tensorflow.trainer",
        "TFEpochIterator",
        "__init__",
        _at_end(lambda iterator: _count_for_keras_3(iterator, strategy_class)),
    )
    extend(
        "tf_keras.src.engine.data_adapter",
        "DataHandler",
        "_configure_dataset_and_inferred_steps",
        _at_end(lambda handler: _count_for_keras_2(handler, strategy_class)),
    )


def build_with_batch(strategy_class: type[Any]) -> None:
    """Let Keras 3 build models with the first batch of local data alone.

    Keras would build them with the mean of the first batches of all replicas, which may
    differ in their shapes.
    """
    extend(
        "keras.src.backend.tensorflow.trainer",
        "TensorFlowTrainer",
        "_maybe_symbolic_build",
        partial(_build_with_batch, strategy_class),
    )


def _build_with_batch(
    strategy_class: type[Any],
    build: Callable[..., None],
    model: Any,
    iterator: Any = None,
    data_batch: Any = None,
) -> None:
    strategy = model._distribute_strategy
    if iterator is None or not isinstance(strategy, strategy_class):
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


def _at_end(then: Callable[[Any], None]) -> Callable[..., Any]:
    """Return what calls a method, and then a function with the method's object."""

    def around(
        method: Callable[..., Any], owner: Any, *args: Any, **kwargs: Any
    ) -> Any:
        result = method(owner, *args, **kwargs)
        then(owner)
        return result

    return around


def _count_for_keras_3(iterator: Any, strategy_class: type[Any]) -> None:
    dataset = iterator._distributed_dataset
    if _counts(dataset, strategy_class):
        steps = _steps_of(dataset, iterator.data_adapter.num_batches)
        iterator.data_adapter = _Adapter(iterator.data_adapter, steps)
        iterator._num_batches = steps


def _count_for_keras_2(handler: Any, strategy_class: type[Any]) -> None:
    dataset = handler._dataset
    if _counts(dataset, strategy_class) and handler._steps_per_epoch is None:
        handler._inferred_steps = _steps_of(dataset, handler._adapter.get_size())


def _counts(dataset: Any, strategy_class: type[Any]) -> bool:
    """Return whether a strategy that extends Keras distributes a data set."""
    strategy = getattr(dataset, "_strategy", None)
    return isinstance(strategy, strategy_class) and strategy.extended.extends_keras


def _steps_of(dataset: Any, batches: int | None) -> int | None:
    """Return how many steps a distributed data set has; None if it is not known.

    Args:
        dataset: The data set.
        batches: How many batches Keras knows of, which may be more than TensorFlow
            does. Of them all instances use as many as the one that has the fewest.
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
