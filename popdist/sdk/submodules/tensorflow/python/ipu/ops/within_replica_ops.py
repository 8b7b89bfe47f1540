"""Exchanges between the IPUs of a replica, which refuse."""

from ..refusals import refused

_REASON = "all IPUs of a replica are one CPU here."
all_gather = refused("all_gather", _REASON)
reduce_scatter = refused("reduce_scatter", _REASON)
all_reduce = refused("all_reduce", _REASON)
