"""Horovod's interface for models of keras."""

import keras

from .._keras.functions import (
    DistributedOptimizer,
    PartialDistributedOptimizer,
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    loader,
    reducescatter,
)
from ..common.calls.reduce_ops import Adasum, Average, Max, Min, Product, Sum
from ..common.ranks import *  # noqa: F403
from ..tensorflow.compression import Compression
from . import callbacks, elastic

load_model = loader(keras.models.load_model)
