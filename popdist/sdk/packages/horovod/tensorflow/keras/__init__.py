"""Horovod's interface for models of tf.keras."""

import tensorflow as tf

from ..._keras.functions import loader
from ..._keras.names import *  # noqa: F403
from . import callbacks, elastic

load_model = loader(tf.keras.models.load_model)
