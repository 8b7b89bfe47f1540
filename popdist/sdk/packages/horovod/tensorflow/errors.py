"""The errors of Horovod's calls on TensorFlow's tensors, which are TensorFlow's, too.

Horovod's operations raise TensorFlow's, which programs catch. In a graph, TensorFlow
raises the ones of the same codes.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from popdist.errors import MismatchError

from ..common import exceptions
from ..common.exceptions import HorovodInternalError


class _WithMessage(tf.errors.OpError):
    """An error of TensorFlow that is made of its message alone."""

    def __init__(self, message: str) -> None:
        super().__init__(None, None, message)


class MismatchedCallError(
    _WithMessage, tf.errors.FailedPreconditionError, HorovodInternalError
):
    """The ranks' calls did not match."""


class FailedCallError(_WithMessage, tf.errors.UnknownError, HorovodInternalError):
    """A collective call failed, for example because a rank has ended."""


class InvalidArgumentError(_WithMessage, tf.errors.InvalidArgumentError, ValueError):
    """The arguments of a call are not valid on this rank alone."""


class UninitializedCallError(
    _WithMessage, tf.errors.FailedPreconditionError, exceptions.NotInitializedError
):
    """A call was made before hvd.init(), or after hvd.shutdown()."""


@contextmanager
def tensorflow_errors() -> Iterator[None]:
    """Turn the errors of calls within this block into TensorFlow's."""
    try:
        yield
    except HorovodInternalError as error:
        cause = error.__cause__
        mismatched = isinstance(cause, MismatchError)
        kind = MismatchedCallError if mismatched else FailedCallError
        raise kind(str(error)) from cause
    except exceptions.NotInitializedError as error:
        raise UninitializedCallError(str(error)) from error
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(str(error)) from error


@contextmanager
def errors_of_graphs() -> Iterator[None]:
    """Turn the errors of failed calls in graphs, within this block, into eager ones.

    TensorFlow hands on the text of an error in a graph, which begins with its class.
    """
    try:
        yield
    except tf.errors.UnknownError as error:
        # Before it, and in the lines after it, is where the graph was made.
        failure = f"{FailedCallError.__name__}: (.*)"
        found = re.search(failure, error.message)
        if found is None or isinstance(error, HorovodInternalError):
            raise
        raise FailedCallError(found[1]) from error
