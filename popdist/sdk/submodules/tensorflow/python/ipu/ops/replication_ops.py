"""Statements on tensors of several replicas."""

from .cross_replica_ops import assume_equal_across_replicas

__all__ = ["assume_equal_across_replicas"]
