"""Horovod's callbacks, for models of keras."""

import keras

from .._keras import callbacks


class BroadcastGlobalVariablesCallback(
    callbacks.BroadcastGlobalVariables, keras.callbacks.Callback
):
    """Overwrites the variables of model and optimizer by one rank's, once."""


class MetricAverageCallback(callbacks.MetricAverage, keras.callbacks.Callback):
    """Averages the metrics of an epoch over the ranks, for the callbacks after it."""


class LearningRateScheduleCallback(
    callbacks.LearningRateSchedule, keras.callbacks.Callback
):
    """Multiplies the learning rate by a function of the epoch."""


class LearningRateWarmupCallback(
    callbacks.LearningRateWarmup, keras.callbacks.Callback
):
    """Raises the learning rate from that of one rank to that of all, in some epochs."""
