"""Optimizers of torch.optim with PopTorch's further arguments, and LAMB."""

from .extended import Optimizer
from .optimizers import LAMB, SGD, Adam, AdamW, RMSprop
from .variable_attributes import VariableAttributes
