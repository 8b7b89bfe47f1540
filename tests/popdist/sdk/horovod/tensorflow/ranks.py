"""Ranks of horovod.tensorflow, as forks of the test that have TensorFlow at once."""

from collections.abc import Callable
from typing import Any

import popdist.sdk
from tests.popdist.tensorflow.instances import on_all

popdist.sdk.install()

import horovod.tensorflow as hvd  # noqa: E402


def results(size: int, function: Callable[[int], Any]) -> list[Any]:
    """Return what function(rank) returns in each rank, after init()."""

    def with_horovod(rank: int) -> Any:
        hvd.init()
        value = function(rank)
        hvd.shutdown()
        return value

    return on_all(size, with_horovod)
