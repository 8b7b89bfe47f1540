"""Instances of a job that use TensorFlow, as forks of the test.

TensorFlow is imported once, and begins to run in the forks only: a process that has run
an operation of it must not be forked.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import pytest
import tensorflow as tf
import tf_keras  # so that the forks need not import it

import popdist.tensorflow  # noqa: F401  (what a program imports first)
from popdist import session
from tests.jobs import environments
from tests.popdist.engine.members import Ended, Me, run

# Tracing takes seconds of CPU, which a loaded machine has few of.
TIMEOUT = pytest.mark.timeout(600)


def on_all(
    rows: int | Sequence[int], function: Callable[[int], Any], timeout: float = 280
) -> list[Any]:
    """Return what function(rank) returns on each instance; an error is the test's.

    Args:
        rows: How many instances there are, or how many replicas each has.
    """
    ended = ends_of(rows, function, timeout)
    for instance in ended:
        if instance.error is not None:
            raise instance.error
    assert [instance.code for instance in ended] == [0] * len(ended), ended
    return [instance.value for instance in ended]


def ends_of(
    rows: int | Sequence[int], function: Callable[[int], Any], timeout: float = 280
) -> list[Ended]:
    """Return how function(rank) ends on each instance."""
    counts = (1,) * rows if isinstance(rows, int) else rows
    environs = environments(counts)

    def instance(me: Me) -> Any:
        os.environ.update(environs[me.rank])
        # What the test's own process has found of itself is not so here.
        session.STATE.__dict__.clear()
        session.STATE.__init__()  # type: ignore[misc]
        return function(me.rank)

    return run(len(counts), instance, timeout)


def keras_of(version: int) -> Any:
    """Return Keras 3, or tf_keras for version 2."""
    return tf.keras if version == 3 else tf_keras
