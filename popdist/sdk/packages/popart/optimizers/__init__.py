"""PopART's optimizers: their values, by weight, and the formulas of their updates."""

from .adam import Adam
from .adaptive import Adaptive
from .clipping import ClipNormSettings
from .optimizer import Optimizer
from .sgd import SGD, ConstSGD
from .values import OptimizerValue, OptimizerValueMap

__all__ = [
    "SGD",
    "Adam",
    "Adaptive",
    "ClipNormSettings",
    "ConstSGD",
    "Optimizer",
    "OptimizerValue",
    "OptimizerValueMap",
]
