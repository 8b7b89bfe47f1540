"""The names of PopTorch's compiled module that programs use."""

from enum import IntEnum
from typing import Any, NoReturn

from .enums import OutputMode
from .errors import Error, RecoverableError, UnrecoverableError
from .execution import current
from .options import Options, validation


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


# Any: each option has a type of its own.
def _validateOptions(values: dict[str, Any]) -> None:
    """Check and log what Options.toDict has returned.

    Raises:
        Error: A name is that of no option, or a value of no type of options.
    """
    defaults = Options().outputMode(OutputMode.All).toDict()
    validation.check(values, defaults)
    validation.log(values)
