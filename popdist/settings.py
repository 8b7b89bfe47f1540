"""The settings of collectives, read from variables that poprun passes on."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Self

from popdist.durations import EXAMPLES, read_duration
from popdist.environment import (
    ALGORITHM,
    DEFAULT_STALL_S,
    LINKS,
    LOG_LEVEL,
    SIMD,
    STALL_TIMEOUT,
    TIMEOUT,
    TRACE,
)
from popdist.errors import SettingError

_ALGORITHMS = ("auto", "oneshot", "direct", "ring")
_LOG_LEVELS = ("off", "err", "warn", "info", "debug", "trace")
_LEVELS = ("baseline", "avx2", "avx512", "neon")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings of collectives: timeouts, algorithm, SIMD level and log level."""

    # Seconds until a call with a missing member is an error, and until the member is
    # named on stderr.
    timeout: float = 1800.0
    stall: float = DEFAULT_STALL_S
    algorithm: str = "auto"
    # None for the best that this processor has.
    simd: str | None = None
    log_level: str = "warn"
    # The folder in which calls are recorded; "" for none.
    trace: str = ""
    # The address at which instance 0 listens for links by TCP, and their key.
    tcp: tuple[str, int, bytes] | None = None

    @property
    def reports_runs(self) -> bool:
        """Whether to report at exit how often each algorithm ran."""
        return self.log_level in ("debug", "trace")

    @classmethod
    def decode(cls, environ: Mapping[str, str]) -> Self:
        """Read the variables that are set. An empty one counts as not set.

        Raises:
            SettingError: The value of one of them is not allowed.
        """
        return cls(
            timeout=_seconds(environ, TIMEOUT, cls().timeout),
            stall=_seconds(environ, STALL_TIMEOUT, cls().stall),
            algorithm=_one_of(environ, ALGORITHM, _ALGORITHMS) or cls().algorithm,
            simd=_one_of(environ, SIMD, _LEVELS),
            # Upper case too, as Poplar's libraries have it.
            log_level=_one_of(environ, LOG_LEVEL, _LOG_LEVELS, str.lower)
            or cls().log_level,
            trace=environ.get(TRACE, ""),
            tcp=_tcp_of(environ),
        )

    def check_level(self, levels: Sequence[str]) -> None:
        """Raise SettingError unless this processor has the SIMD level asked for."""
        if self.simd is not None and self.simd not in levels:
            rule = f"one of {', '.join(levels)}, as this processor has no other"
            raise SettingError(SIMD, self.simd, rule)


def _tcp_of(environ: Mapping[str, str]) -> tuple[str, int, bytes] | None:
    """Return the address and the key of links by TCP, if the user wants these."""
    text = environ.get(LINKS)
    if not text:
        return None
    parts = re.fullmatch(r"tcp://(?:\[(.+)\]|([^/:]+)):([0-9]{1,5})/(.{8,})", text)
    if parts is None:
        # The secret is not shown.
        shown = text[: text.rfind("/") + 1][:60] + "..."
        rule = "tcp://HOST:PORT/SECRET, with a secret of 8 characters or more"
        raise SettingError(LINKS, shown, rule)
    address, name, port, key = parts.groups()
    return address or name, int(port), key.encode()


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name)
    if not text:
        return default
    seconds = read_duration(text)
    if seconds is None or not 0 < seconds < inf:
        rule = f"a number of seconds more than 0, or a duration such as {EXAMPLES}"
        raise SettingError(name, text[:40], rule)
    return seconds


def _one_of(
    environ: Mapping[str, str],
    name: str,
    choices: tuple[str, ...],
    read: Callable[[str], str] = str,
) -> str | None:
    text = environ.get(name, "")
    if text and read(text) not in choices:
        raise SettingError(name, text[:40], f"one of {', '.join(choices)}")
    return read(text) or None
