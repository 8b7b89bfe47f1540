"""The logger of PopTorch: its lines go to stderr, from a level on that users set."""

import logging
import os
import sys
from functools import cache
from typing import Any, TextIO

# Their index can be given instead of a name.
NAMES = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERR": 40, "OFF": 100}
LABELS = {5: "trace", 10: "debug", 20: "info", 30: "warning", 40: "error"}

logger = logging.getLogger("poptorch:python")


class _Handler(logging.StreamHandler[TextIO]):
    """Writes lines to the current sys.stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = f"{self.formatTime(record, '%H:%M:%S')}.{int(record.msecs):03}"
        level = LABELS.get(record.levelno, record.levelname.lower())
        text = super().format(record)
        return f"[{time}] [{record.name}] [{level}] {text}"


def setLogLevel(level: str | int) -> None:
    """Log only messages of this level or a more severe one.

    Args:
        level: "TRACE", "DEBUG", "INFO", "WARN", "ERR" or "OFF", or its index in this
            list.

    Raises:
        ValueError: There is no such level.
    """
    names = list(NAMES)
    is_index = isinstance(level, int) and level in range(len(names))
    name = names[int(level)] if is_index else str(level).upper()
    if name not in NAMES:
        raise ValueError(
            f"{level!r} is not a log level. Choose one of {', '.join(NAMES)}."
        )
    logger.setLevel(NAMES[name])


def setPopartLogLevel(level: str | int) -> None:
    """Check the level, and set nothing: there is no PopART here that logs."""
    before = logger.level
    setLogLevel(level)
    logger.setLevel(before)


def warn_as_backend(text: str) -> None:
    """Log a warning under the name that PopTorch's compiled part logs by."""
    if logger.isEnabledFor(logging.WARNING):
        name = "poptorch:cpp"
        logger.handle(logger.makeRecord(name, logging.WARNING, "", 0, text, (), None))


@cache
def warn_deprecated(old: str, new: str) -> None:
    """Warn once that a name is an old one."""
    logger.warning("%s is deprecated: use %s instead.", old, new)


# Any: each option has another type.
def log_options(values: dict[str, Any]) -> None:
    """Log each option at level debug, in PopTorch's words."""
    if not logger.isEnabledFor(logging.DEBUG):
        return
    for name, value in values.items():
        if isinstance(value, dict):
            lines = [f"set {name}[{key}] to {entry}" for key, entry in value.items()]
        elif isinstance(value, list | tuple | set):
            lines = [f"added {entry} to {name}" for entry in value]
        else:
            text = str(value).lower() if isinstance(value, bool) else value
            lines = [f"set {name} to value {text}"]
        for line in lines:
            logger.debug("poptorch.Options %s", line)


def _set_up() -> None:
    handler = _Handler()
    handler.setFormatter(_Formatter())
    logger.addHandler(handler)
    level = os.environ.get("POPTORCH_LOG_LEVEL") or "WARN"
    try:
        setLogLevel(int(level) if level.isdigit() else level)
    except ValueError as error:
        setLogLevel("WARN")
        logger.warning("POPTORCH_LOG_LEVEL is ignored: %s", error)


if not logger.handlers:
    _set_up()
