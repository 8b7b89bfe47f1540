"""Optimizers of torch.optim with PopTorch's further arguments, and LAMB."""

from .adam import Adam, AdamW
from .extended import Optimizer
from .lamb import LAMB
from .rmsprop import RMSprop
from .sgd import SGD
from .variable_attributes import VariableAttributes
