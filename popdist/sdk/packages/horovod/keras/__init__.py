"""Horovod's interface for models of keras."""

import keras

from .._keras.functions import loader
from .._keras.names import *  # noqa: F403
from . import callbacks, elastic

load_model = loader(keras.models.load_model)
