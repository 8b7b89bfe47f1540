"""IPUStrategy: a model in one process, on one replica."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import tensorflow as tf

import popdist
from popdist.replicated.lone_training import told

from .keras.model_options import add_to_models
from .refusals import logger
from .replication import selected_ipus


class IPUStrategyV1(tf.distribute.OneDeviceStrategy):
    """Runs the operations in its scope on an IPU, emulated by the CPU."""

    def __init__(
        self,
        ipu_device: str = "/device:IPU:0",
        add_ipu_cross_replica_reductions: bool = True,
        enable_dataset_iterators: bool = True,
        enable_keras_extensions: bool = True,
    ) -> None:
        """Make a strategy.

        Args:
            ipu_device: The device, such as /device:IPU:0.
            add_ipu_cross_replica_reductions: Whether sums over replicas are made; there
                is one replica.
            enable_dataset_iterators: Whether a chip gets the elements of data sets by
                queues.
            enable_keras_extensions: Whether Keras models have IPU options.
        """
        super().__init__("/device:CPU:0")
        self._ipu_device = ipu_device
        if enable_keras_extensions:
            add_to_models()
        if selected_ipus() > 1:
            _warn_of_ipus(selected_ipus())
        if popdist.getNumInstances() > 1:
            _warn_of_instances(popdist.getNumInstances())

    def experimental_run_v2(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Return what a function returns; `run` in older releases."""
        return self.run(fn, args, kwargs)


IPUStrategy = IPUStrategyV1


@cache
def _warn_of_ipus(ipus: int) -> None:
    """Warn once that a model has one replica."""
    logger.warning(
        "IPUStrategy trains one replica on the CPU, though the configuration selects "
        "%d IPUs. For more replicas, use PopDistStrategy under poprun.",
        ipus,
    )


@cache
def _warn_of_instances(instances: int) -> None:
    """Warn once that the instances of a job do not train one model."""
    logger.warning(
        "IPUStrategy trains each of the %d instances on its own data, and exchanges "
        "nothing. Use PopDistStrategy, or an optimizer of Horovod's, for one model.",
        instances,
    )
    told.set()
