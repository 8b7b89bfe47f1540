"""Hooks of estimators, which refuse."""

from .ipu_outfeed_queue import IPUOutfeedMode
from .refusals import refused

_REASON = (
    "TensorFlow has had no estimators since 2.16. Run what the queue's "
    "dequeue() returns."
)
IPULoggingTensorHook = refused("IPULoggingTensorHook", _REASON)
# Programs name it as a default of their own.
IPULoggingTensorHook.LoggingMode = IPUOutfeedMode  # type: ignore[attr-defined]
