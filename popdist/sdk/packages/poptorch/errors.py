"""The errors that PopTorch raises."""

from typing import NoReturn


class Error(RuntimeError):
    """A model, or what it was called with, cannot be run.

    `message` is the sentence, `type` the component that raised it, `location` where.
    """

    def __init__(
        self, message: str, type: str = "poptorch_py_error", location: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.type = type
        self.location = location


class RecoverableError(Error):
    """The hardware failed, and works again after `recovery_action`."""

    def __init__(self, message: str, recovery_action: str, location: str = "") -> None:
        super().__init__(message, "poplar_recoverable_runtime_error", location)
        self.recovery_action = recovery_action


class UnrecoverableError(Error):
    """The hardware failed, and has to be taken out of service."""

    def __init__(self, message: str, location: str = "") -> None:
        super().__init__(message, "poplar_unrecoverable_runtime_error", location)


class ConfigFileError(Exception):
    """A line of a file of options is not valid."""


class ArgumentsError(AssertionError, ValueError):
    """Arguments exclude each other: torch and PopTorch raise one or the other."""


def require(holds: object, message: str) -> None:
    """Raise an AssertionError with the message, unless `holds` is true.

    PopTorch documents AssertionErrors for wrong arguments. `assert` would raise none
    under `python -O`.
    """
    if not holds:
        raise AssertionError(message)


def require_value(holds: object, message: str) -> None:
    """Raise a ValueError with the message, unless `holds` is true."""
    if not holds:
        raise ValueError(message)


def require_type(name: str, value: object, kind: type) -> None:
    """Raise an AssertionError unless an argument is of a type of Python's."""
    article = "an" if kind is int else "a"
    message = f"{name} is {value!r}, but must be {article} {kind.__name__}."
    require(isinstance(value, kind), message)


def require_poptorch(value: object, kind: type) -> None:
    """Raise an AssertionError unless a value is of a class of PopTorch's."""
    message = f"{value!r} is not a poptorch.{kind.__name__}."
    require(isinstance(value, kind), message)


def createPoptorchError(message: str) -> Error:
    """Return the error for a message: `raise createPoptorchError("...")`."""
    return Error(message)


def raise_frozen() -> NoReturn:
    """Refuse a change of options that a model or a loader works with already."""
    raise AttributeError("Can't modify frozen Options")
