"""Ranks of Horovod as forks of the test, which have torch at once."""

import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch

import popdist.sdk
from popdist.session import STATE
from tests.jobs import environments
from tests.popdist.engine import members
from tests.popdist.engine.members import Ended, Me

popdist.sdk.install()

import horovod.torch as hvd  # noqa: E402

# Members are forks: a thread of OpenMP would not be in them.
torch.set_num_threads(1)


def start(size: int, function: Callable[[int], Any]) -> list[Ended]:
    """Run function(rank) in so many ranks, which have not called init()."""
    # Each fork would import it, for its first optimizer: 2 s.
    import_module("torch._dynamo")
    told = environments((1,) * size)

    def member(me: Me) -> Any:
        os.environ.update(told[me.rank])
        # What the test's own process has read of its environment, in any test so far.
        for known in ("job", "settings"):
            STATE.__dict__.pop(known, None)
        torch.manual_seed(me.rank)
        # Tensors would come by way of a server in this process, which ends now.
        return pickle.dumps(function(me.rank))

    return [
        replace(one, value=pickle.loads(one.value)) if one.value else one
        for one in members.run(size, member)
    ]


def results(size: int, function: Callable[[int], Any]) -> list[Any]:
    """Return what function(rank) returns in each rank, after init()."""

    def with_horovod(rank: int) -> Any:
        hvd.init()
        value = function(rank)
        hvd.shutdown()
        return value

    ended = start(size, with_horovod)
    for one in ended:
        if one.error is not None:
            raise one.error
    assert [(one.code, one.stderr) for one in ended] == [(0, "")] * size
    return [one.value for one in ended]


def error_of(call: Callable[[], Any]) -> tuple[str, str]:
    """Return the type and the text of the error that a call raises."""
    try:
        found = call()
    except Exception as error:
        return type(error).__name__, str(error)
    raise AssertionError(f"No error was raised, but {found!r} was returned.")
