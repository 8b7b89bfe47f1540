"""Recurrent layers of Graphcore's own, which refuse."""

from ..refusals import refused

_REASON = "use tf.keras.layers.LSTM or GRU; its order of weights is another one."
PopnnLSTM = refused("PopnnLSTM", _REASON)
PopnnGRU = refused("PopnnGRU", _REASON)
PopnnDynamicLSTM = refused("PopnnDynamicLSTM", _REASON)
PopnnDynamicGRU = refused("PopnnDynamicGRU", _REASON)
PopnnAUGRU = refused("PopnnAUGRU", _REASON)
