"""Elastic Horovod, in a job whose number of ranks is fixed."""

from collections.abc import Callable
from typing import Any

from ...common.elastic import ObjectState, State, run_fn
from ..ranks.basics import init, shutdown
from .sampler import ElasticSampler
from .state import TorchState

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]


# Any, because the function's arguments and result are its own.
def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that goes on from its last commit after an error of Horovod.

    Args:
        func: Takes a State first, which all ranks take over from rank 0 before. The
            error is raised if there was no commit since it began, or if a rank has
            ended: then poprun can restart the job.
    """
    return run_fn(func, _begin_anew)


def _begin_anew() -> None:
    shutdown()
    init()
