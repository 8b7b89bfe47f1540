"""The errors of Horovod's calls on TensorFlow's tensors, which are TensorFlow's, too.

Horovod's operations raise TensorFlow's, which programs catch. In a graph, TensorFlow
raises the ones of the same codes.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from popdist.errors import MismatchError

from ..common import exceptions
from ..common.exceptions import HorovodInternalError


class MismatchedCallError(HorovodInternalError, tf.errors.FailedPreconditionError):
    """The ranks' calls did not match."""

    def __init__(self, message: str) -> None:
        tf.errors.FailedPreconditionError.__init__(self, None, None, message)


class FailedCallError(HorovodInternalError, tf.errors.UnknownError):
    """A collective call failed, for example because a rank has ended."""

    def __init__(self, message: str) -> None:
        tf.errors.UnknownError.__init__(self, None, None, message)


class InvalidArgumentError(ValueError, tf.errors.InvalidArgumentError):
    """The arguments of a call are not valid on this rank alone."""

    def __init__(self, message: str) -> None:
        tf.errors.InvalidArgumentError.__init__(self, None, None, message)


class UninitializedCallError(
    exceptions.NotInitializedError, tf.errors.FailedPreconditionError
):
    """A call was made before hvd.init(), or after hvd.shutdown()."""

    def __init__(self, message: str) -> None:
        tf.errors.FailedPreconditionError.__init__(self, None, None, message)


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
