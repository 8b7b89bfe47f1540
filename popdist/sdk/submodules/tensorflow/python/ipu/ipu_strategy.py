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

_SEVERAL_IPUS = (
    "IPUStrategy trains one replica on the CPU, though the configuration selects %d "
    "IPUs. For more replicas, use PopDistStrategy under poprun."
)
_SEVERAL_INSTANCES = (
    "IPUStrategy trains each of the %d instances on its own data, and exchanges "
    "nothing. Use PopDistStrategy, or an optimizer of Horovod's, for one model."
)


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
            _warn_once(_SEVERAL_IPUS, selected_ipus())
        if popdist.getNumInstances() > 1:
            _warn_once(_SEVERAL_INSTANCES, popdist.getNumInstances())
            told.set()

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
def _warn_once(message: str, number: int) -> None:
    logger.warning(message, number)
