"""Automatic assignment of operations to IPUs, which changes no result."""

from typing import Any


def automatic_sharding(
    num_shards: int, input_ts: Any, loss_ts: Any, *args: Any, **kwargs: Any
) -> None:
    """Leave all operations on the one CPU."""


def propagate_sharding(g: Any) -> None:
    """Leave gradients on the one CPU, too."""
