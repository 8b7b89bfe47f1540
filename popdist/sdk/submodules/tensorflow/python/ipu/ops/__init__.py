"""Operations for IPUs."""

from . import cross_replica_ops, pipelining_ops
