"""Instances of a job as forks of the test, which have torch at once."""

import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from popdist.session import STATE
from tests.jobs import environments
from tests.popdist.engine import members
from tests.popdist.engine.members import Ended, Me

# Members are forks: a thread of OpenMP would not be in them.
torch.set_num_threads(1)


def start(rows: Sequence[int], function: Callable[[int], Any]) -> list[Ended]:
    """Run function(index) in instances that own `rows` replicas."""
    told = environments(rows)

    def member(me: Me) -> Any:
        os.environ.update(told[me.rank])
        # What the test's own process has read of its environment, in any test so far.
        for known in ("job", "settings"):
            STATE.__dict__.pop(known, None)
        # Tensors would come by way of a server in this process, which ends now.
        return pickle.dumps(function(me.rank))

    return [
        replace(one, value=pickle.loads(one.value)) if one.value else one
        for one in members.run(len(rows), member)
    ]


def results(rows: Sequence[int], function: Callable[[int], Any]) -> list[Any]:
    """Return what function(index) returns in each instance."""
    return values_of(start(rows, function))


def values_of(ended: Sequence[Ended]) -> list[Any]:
    """Return the values of instances; an error of one is the test's."""
    for one in ended:
        if one.error is not None:
            raise one.error
    assert [(one.code, one.stderr) for one in ended] == [(0, "")] * len(ended)
    return [one.value for one in ended]
