"""IPUMultiWorkerStrategy, which refuses."""

from .refusals import refused

_REASON = "it exchanges by gRPC. Use PopDistStrategy under poprun."
IPUMultiWorkerStrategy = refused("IPUMultiWorkerStrategy", _REASON)
IPUMultiWorkerStrategyV1 = refused("IPUMultiWorkerStrategyV1", _REASON)
IPUSyncOnReadVariable = refused("IPUSyncOnReadVariable", _REASON)
IPUMirroredVariable = refused("IPUMirroredVariable", _REASON)
