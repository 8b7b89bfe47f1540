"""PopDistStrategy under its earlier name: that of popdist.tensorflow."""

from popdist.tensorflow import PopDistStrategy
from popdist.tensorflow.strategy.variables import (
    IPUMirroredVariable,
    IPUSyncOnReadVariable,
)

__all__ = ["IPUMirroredVariable", "IPUSyncOnReadVariable", "PopDistStrategy"]
