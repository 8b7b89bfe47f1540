"""Horovod's callbacks, for models of tf.keras."""

import tensorflow as tf

from ..._keras.callbacks import PARTS, of_keras

(
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
) = of_keras(PARTS, tf.keras.callbacks.Callback, __name__)
