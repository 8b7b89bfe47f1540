"""Graphcore's part of TensorFlow, emulated on the CPU by TensorFlow and popdist."""

from . import (
    config,
    ipu_compiler,
    ipu_infeed_queue,
    ipu_outfeed_queue,
    ipu_strategy,
    loops,
    ops,
    optimizers,
    scopes,
    tensorflow_settings,
    utils,
)
from .ops import cross_replica_ops, pipelining_ops
from .optimizers import (
    cross_replica_optimizer,
    gradient_accumulation_optimizer,
    map_gradient_optimizer,
    sharded_optimizer,
)

# What others tell the installed package from.
__stand_in__ = True

tensorflow_settings.apply()
