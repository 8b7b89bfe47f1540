"""PopDistStrategy in the module that it had before release 2.4."""

from .popdist_strategy import (
    IPUMirroredVariable,
    IPUMultiReplicaStrategy,
    IPUMultiReplicaStrategyV1,
    IPUSyncOnReadVariable,
)

__all__ = [
    "IPUMirroredVariable",
    "IPUMultiReplicaStrategy",
    "IPUMultiReplicaStrategyV1",
    "IPUSyncOnReadVariable",
]
