"""IPUEstimator, which refuses."""

from .refusals import refused

_REASON = (
    "TensorFlow has had no estimators since 2.16. Use a Keras model, or a "
    "session with ipu_compiler.compile."
)
IPUEstimator = refused("IPUEstimator", _REASON)
IPUEstimatorSpec = refused("IPUEstimatorSpec", _REASON)
