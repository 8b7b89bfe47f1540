"""Horovod's elastic interface for models of keras."""

import keras

from .._keras.callbacks import of_keras
from .._keras.elastic import PARTS, KerasState
from ..tensorflow.elastic import run

CommitStateCallback, UpdateBatchStateCallback, UpdateEpochStateCallback = of_keras(
    PARTS, keras.callbacks.Callback, __name__
)

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]
