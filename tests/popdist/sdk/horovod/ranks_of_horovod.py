"""Ranks of Horovod as forks of the test, which have torch at once."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

import popdist.sdk
from tests.popdist.engine.members import Ended
from tests.popdist.sdk import torch_instances

popdist.sdk.install()

import horovod.torch as hvd  # noqa: E402


def start(size: int, function: Callable[[int], Any]) -> list[Ended]:
    """Run function(rank) in so many ranks, which have not called init()."""
    # Each fork would import it, for its first optimizer: 2 s.
    import_module("torch._dynamo")

    def seeded(rank: int) -> Any:
        torch.manual_seed(rank)
        return function(rank)

    return torch_instances.start((1,) * size, seeded)


def results(size: int, function: Callable[[int], Any]) -> list[Any]:
    """Return what function(rank) returns in each rank, after init()."""

    def with_horovod(rank: int) -> Any:
        hvd.init()
        value = function(rank)
        hvd.shutdown()
        return value

    return torch_instances.values_of(start(size, with_horovod))
