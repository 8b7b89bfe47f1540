"""PopART's optimizers: their values, by weight, and the formulas of their updates."""

from .adam import Adam
from .adaptive import Adaptive
from .clipping import ClipNormSettings, clipped
from .optimizer import Optimizer, State
from .sgd import SGD, ConstSGD
from .values import OptimizerValue, OptimizerValueMap
