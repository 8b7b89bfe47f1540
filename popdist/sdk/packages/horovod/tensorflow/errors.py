"""The errors of Horovod's calls in eager execution, which are TensorFlow's, too.

Horovod's operations raise TensorFlow's, which programs catch.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from popdist.errors import MismatchError

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
    """The splits of a tensor are not valid."""

    def __init__(self, message: str) -> None:
        tf.errors.InvalidArgumentError.__init__(self, None, None, message)


@contextmanager
def argument_errors() -> Iterator[None]:
    """Raise a ValueError, within this block, as one of TensorFlow."""
    try:
        yield
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from None


@contextmanager
def tensorflow_errors() -> Iterator[None]:
    """Raise Horovod's errors, within this block, as those of TensorFlow."""
    try:
        yield
    except HorovodInternalError as error:
        cause = error.__cause__
        mismatched = isinstance(cause, MismatchError)
        kind = MismatchedCallError if mismatched else FailedCallError
        raise kind(str(error)) from cause
