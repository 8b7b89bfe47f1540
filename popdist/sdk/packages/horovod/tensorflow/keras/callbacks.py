"""Horovod's callbacks, for models of tf.keras."""

import tensorflow as tf

from ..._keras.callbacks import of_keras

(
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
) = of_keras(tf.keras.callbacks.Callback, __name__)
