"""The names of PopTorch's compiled module that programs use."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NoReturn

from ._logging import log_options
from .enums import OutputMode
from .errors import Error, RecoverableError, UnrecoverableError
from .execution import current
from .options import Options
from .options.popart_options import check_options


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


# Rare options, and strategies of phases.
_OWN = """
ipu_id ipu_version model_name random_seed separate_backward_phase
serial_phases_execution tensors_liveness updatable_named_buffers use_model
"""


# Any: each option has another type.
def _validateOptions(options: Mapping[str, Any]) -> None:
    """Log options, and raise Error if one of them is none that PopART has."""
    log_options(dict(options))
    own = {*_OWN.split(), *Options().outputMode(OutputMode.All).toDict()}
    check_options({n: value for n, value in options.items() if n not in own})
