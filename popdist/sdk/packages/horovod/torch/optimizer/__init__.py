"""Optimizers whose gradients all ranks reduce."""

from .distributed_optimizer import DistributedOptimizer
