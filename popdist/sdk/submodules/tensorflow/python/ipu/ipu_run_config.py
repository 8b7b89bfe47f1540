"""Configurations of estimators, which refuse."""

from .refusals import refused

_REASON = "TensorFlow has had no estimators since 2.16. Use config.IPUConfig."
IPURunConfig = refused("IPURunConfig", _REASON)
RunConfig = refused("RunConfig", _REASON)
