"""The names of PopTorch's compiled module that programs use."""

from enum import IntEnum
from typing import NoReturn

from .errors import Error, RecoverableError, UnrecoverableError
from .execution import current


class TestErrorType(IntEnum):
    """An error that a test of a program's error handling wants to see."""

    # For pytest: it is no test.
    __test__ = False

    Poptorch = 0
    Popart = 1
    PopartInternal = 2
    Poplibs = 3
    PoplarUnrecoverable = 4
    PoplarUnknown = 5
    PoplarRecoverableFullReset = 6
    PoplarLinkError = 7


def _throwTestError(error: TestErrorType) -> NoReturn:
    """Raise the error of this type."""
    message = f"Test error of type {error.name}"
    if error == TestErrorType.PoplarUnrecoverable:
        raise UnrecoverableError(message)
    if error == TestErrorType.PoplarRecoverableFullReset:
        raise RecoverableError(message, recovery_action="FULL_RESET")
    raise Error(message, type=error.name)


def isCompilingWithDispatcher() -> bool:
    """Return whether a model is being run."""
    return current() is not None
