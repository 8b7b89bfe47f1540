"""popdist.tensorflow's PopDistStrategy, under its earlier names, too."""

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

# The names before release 2.4. Release 2.4 has them, too.
IPUMultiReplicaStrategy = IPUMultiReplicaStrategyV1 = PopDistStrategy
