"""PopDistStrategy under its earlier names: that of popdist.tensorflow."""

from popdist.tensorflow import PopDistStrategy
from popdist.tensorflow.strategy.variables import (
    IPUMirroredVariable,
    IPUSyncOnReadVariable,
)

__all__ = [
    "IPUMirroredVariable",
    "IPUMultiReplicaStrategy",
    "IPUMultiReplicaStrategyV1",
    "IPUSyncOnReadVariable",
    "PopDistStrategy",
]

# The names before release 2.4, which that release has here, too.
IPUMultiReplicaStrategy = IPUMultiReplicaStrategyV1 = PopDistStrategy
