"""The names of elastic Horovod, which raise an error: it is not available."""

from typing import Any, NoReturn

_NOT_HERE = (
    "horovod.torch.elastic.{} is not available: the number of ranks of a job is fixed "
    "here. Start the program with poprun --num-instances N, which can restart a job "
    "that fails, and save checkpoints."
)


class _NotHere:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(_NOT_HERE.format(type(self).__name__))


class TorchState(_NotHere):
    """Not available: see the error."""


class ElasticSampler(_NotHere):
    """Not available: see the error."""


class State(_NotHere):
    """Not available: see the error."""


class ObjectState(_NotHere):
    """Not available: see the error."""


def run(func: Any) -> NoReturn:
    """Refuse to run a function elastically.

    Raises:
        NotImplementedError: Always.
    """
    raise NotImplementedError(_NOT_HERE.format("run"))
