"""PopDistStrategy under the name that it had before release 2.4."""

from popdist.tensorflow import PopDistStrategy

from .popdist_strategy import IPUMirroredVariable, IPUSyncOnReadVariable

__all__ = [
    "IPUMirroredVariable",
    "IPUMultiReplicaStrategy",
    "IPUMultiReplicaStrategyV1",
    "IPUSyncOnReadVariable",
]

IPUMultiReplicaStrategy = IPUMultiReplicaStrategyV1 = PopDistStrategy
