"""IPUMultiWorkerStrategy, which refuses, and the variables of other strategies."""

from popdist.tensorflow.strategy.variables import (
    IPUMirroredVariable,
    IPUSyncOnReadVariable,
)

from .refusals import refused

__all__ = [
    "IPUMirroredVariable",
    "IPUMultiWorkerStrategy",
    "IPUMultiWorkerStrategyV1",
    "IPUSyncOnReadVariable",
]

_REASON = "it exchanges by gRPC. Use PopDistStrategy under poprun."
IPUMultiWorkerStrategy = refused("IPUMultiWorkerStrategy", _REASON)
IPUMultiWorkerStrategyV1 = refused("IPUMultiWorkerStrategyV1", _REASON)
