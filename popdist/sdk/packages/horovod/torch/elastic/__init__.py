"""Horovod's elastic interface for PyTorch."""

from ...common.elastic import ObjectState, State, run
from .sampler import ElasticSampler
from .state import TorchState
