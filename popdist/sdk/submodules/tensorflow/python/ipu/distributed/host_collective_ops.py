"""Collectives on the host, which are those of popdist.tensorflow."""

from popdist.tensorflow import allgather, allreduce, broadcast

__all__ = ["allgather", "allreduce", "broadcast"]
