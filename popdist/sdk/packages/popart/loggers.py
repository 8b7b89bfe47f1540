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


class Logger:
    """One module's logger, below the logger `popart` of Python."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(
            "popart" if name == "all" else f"popart.{name}"
        )

    def setLevel(self, level: str) -> None:
        """Log only messages of this level or a more severe one.

        Raises:
            ValueError: There is no such level.
        """
        if level.upper() not in LEVELS:
            raise ValueError(
                f"{level!r} is not a log level. Choose one of {', '.join(LEVELS)}."
            )
        self._logger.setLevel(LEVELS[level.upper()])

    def debug(self, info: str) -> None:
        """Log at level DEBUG."""
        self._logger.debug(info)

    def info(self, info: str) -> None:
        """Log at level INFO."""
        self._logger.info(info)

    def warn(self, info: str) -> None:
        """Log at level WARN."""
        self._logger.warning(info)

    def error(self, info: str) -> None:
        """Log at level ERR."""
        self._logger.error(info)

    def critical(self, info: str) -> None:
        """Log at level CRITICAL."""
        self._logger.critical(info)


def getLogger(name: str = "all") -> Logger:
    """Return the logger of one of PopART's modules, or of all."""
    return Logger(name)
