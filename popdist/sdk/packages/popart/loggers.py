"""PopART's loggers, one for each of its modules, which log nothing by themselves."""

import logging

LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERR": logging.ERROR,
    "CRITICAL": logging.CRITICAL,
    "OFF": 100,
}


class Logger(logging.LoggerAdapter[logging.Logger]):
    """One module's logger, below the logger `popart` of Python."""

    def __init__(self, name: str) -> None:
        super().__init__(
            logging.getLogger("popart" if name == "all" else f"popart.{name}"), {}
        )

    def setLevel(self, level: int | str) -> None:
        """Log only messages of this level or a more severe one.

        Raises:
            ValueError: There is no such level.
        """
        if str(level).upper() not in LEVELS:
            raise ValueError(
                f"{level!r} is not a log level. Choose one of {', '.join(LEVELS)}."
            )
        super().setLevel(LEVELS[str(level).upper()])

    # Python's own is deprecated.
    warn = logging.LoggerAdapter.warning


def getLogger(name: str = "all") -> Logger:
    """Return the logger of one of PopART's modules, or of all."""
    return Logger(name)
