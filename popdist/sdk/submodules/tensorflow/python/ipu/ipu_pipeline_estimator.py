"""IPUPipelineEstimator, which refuses."""

from .refusals import refused

_REASON = (
    "TensorFlow has had no estimators since 2.16. Use a session with "
    "pipelining_ops.pipeline."
)
IPUPipelineEstimator = refused("IPUPipelineEstimator", _REASON)
IPUPipelineEstimatorSpec = refused("IPUPipelineEstimatorSpec", _REASON)
