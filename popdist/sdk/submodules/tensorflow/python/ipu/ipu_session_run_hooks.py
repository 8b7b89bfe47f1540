"""Hooks of estimators, which refuse."""

from .refusals import refused

_REASON = (
    "TensorFlow has had no estimators since 2.16. Run what the queue's "
    "dequeue() returns."
)
IPULoggingTensorHook = refused("IPULoggingTensorHook", _REASON)
