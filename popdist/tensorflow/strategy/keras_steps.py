"""How many steps an epoch of Keras has, where local replicas take a batch each.

Keras counts one step for each batch of the data set that it is given, and runs into its
end. Both Kerases are taught otherwise where they are imported, for data sets that
PopDistStrategy distributes.
"""

from collections.abc import Callable
from typing import Any

from popdist.tensorflow.strategy.extending import extend


class _Adapter:
    """A data adapter of Keras's, which counts steps in place of batches."""

    def __init__(self, adapter: Any, steps: int | None) -> None:
        self._adapter = adapter
        self.num_batches = steps

    # Any: adapters have attributes of many types.
    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)


def count_steps(strategy_class: type) -> None:
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


def _at_end(then: Callable[[Any], None]) -> Callable[..., Any]:
    """Return what calls a method, and then a function with the method's object."""

    def around(
        method: Callable[..., Any], owner: Any, *args: Any, **kwargs: Any
    ) -> Any:
        result = method(owner, *args, **kwargs)
        then(owner)
        return result

    return around


def _count_for_keras_3(iterator: Any, strategy_class: type) -> None:
    dataset = iterator._distributed_dataset
    strategy = getattr(dataset, "_strategy", None)
    if isinstance(strategy, strategy_class):
        steps = _steps_of(dataset, strategy)
        iterator.data_adapter = _Adapter(iterator.data_adapter, steps)
        iterator._num_batches = steps


def _count_for_keras_2(handler: Any, strategy_class: type) -> None:
    strategy = getattr(handler._dataset, "_strategy", None)
    if isinstance(strategy, strategy_class) and handler._steps_per_epoch is None:
        handler._inferred_steps = _steps_of(handler._dataset, strategy)


def _steps_of(dataset: Any, strategy: Any) -> int | None:
    """Return how many steps a distributed data set has; None if it is not known."""
    batches = int(dataset.cardinality)
    local_replicas = len(strategy.extended.worker_devices)
    return None if batches < 0 else -(-batches // local_replicas)
