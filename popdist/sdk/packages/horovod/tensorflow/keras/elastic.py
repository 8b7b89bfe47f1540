"""Horovod's elastic interface for models of tf.keras."""

import tensorflow as tf

from ..._keras.callbacks import of_keras
from ..._keras.elastic import PARTS, KerasState
from ..elastic import run

CommitStateCallback, UpdateBatchStateCallback, UpdateEpochStateCallback = of_keras(
    PARTS, tf.keras.callbacks.Callback, __name__
)

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]
