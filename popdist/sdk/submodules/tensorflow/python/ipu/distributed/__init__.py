"""Collectives between the instances of a job, by popdist."""

from . import host_collective_ops, ipu_horovod_strategy, popdist_strategy
from .host_collective_ops import allgather, allreduce, broadcast
