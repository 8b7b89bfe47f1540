"""Horovod's interface for models of keras."""

from typing import Any

import keras

from .._keras.functions import (
    DistributedOptimizer,
    PartialDistributedOptimizer,
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    load_by,
    reducescatter,
)
from ..common.calls.reduce_ops import Adasum, Average, Max, Min, Product, Sum
from ..common.compression import Compressor
from ..common.ranks import *  # noqa: F403
from ..tensorflow.compression import Compression
from . import callbacks, elastic


# Any: paths, and models and classes of Keras, which has no types.
def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Compressor = Compression.none,
) -> Any:
    """Return a saved model, whose optimizer becomes a DistributedOptimizer.

    Args:
        filepath: Where it was saved, with any optimizer, whose state is loaded, too.
        custom_optimizers: Classes of optimizers that Keras does not have.
        custom_objects: Other classes and functions that it does not have, by name.
        compression: What gradients are turned into before they are reduced.
    """
    load = keras.models.load_model
    return load_by(load, filepath, custom_optimizers, custom_objects, compression)
