"""Horovod's callbacks, for models of keras."""

import keras

from .._keras.callbacks import of_keras

(
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
) = of_keras(keras.callbacks.Callback, __name__)
