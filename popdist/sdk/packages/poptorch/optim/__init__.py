"""Optimizers of torch.optim with PopTorch's further arguments, and LAMB."""

from .extended import Optimizer
from .lamb import LAMB
from .torch_optimizers import SGD, Adam, AdamW, RMSprop
from .variable_attributes import VariableAttributes

__all__ = [
    "LAMB",
    "SGD",
    "Adam",
    "AdamW",
    "Optimizer",
    "RMSprop",
    "VariableAttributes",
]
