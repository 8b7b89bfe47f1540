"""Horovod's callbacks, for models of keras."""

import keras

from .._keras.callbacks import PARTS, of_keras

(
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
) = of_keras(PARTS, keras.callbacks.Callback, __name__)
