"""What the user may choose about collectives, by variables that poprun passes on."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Self

from popdist.environment import ALGORITHM, SIMD, STALL_TIMEOUT, TIMEOUT
from popdist.errors import SettingError

_ALGORITHMS = ("auto", "oneshot", "direct", "ring")
_LEVELS = ("baseline", "avx2", "avx512", "neon")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How long to wait for the others, and how to reduce."""

    # Seconds until a call for which somebody does not come is an error, and until
    # that somebody is named on stderr.
    timeout: float = 1800.0
    stall: float = 60.0
    algorithm: str = "auto"
    # None for the best that this processor has.
    simd: str | None = None

    @classmethod
    def decode(cls, environ: Mapping[str, str]) -> Self:
        """Read the variables that are set. An empty one counts as not set.

        Raises:
            SettingError: One of them cannot be what it is.
        """
        return cls(
            timeout=_seconds(environ, TIMEOUT, cls().timeout),
            stall=_seconds(environ, STALL_TIMEOUT, cls().stall),
            algorithm=_one_of(environ, ALGORITHM, _ALGORITHMS) or cls().algorithm,
            simd=_one_of(environ, SIMD, _LEVELS),
        )


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name)
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    # What is no number is not more than 0, either.
    if not 0 < seconds < inf:
        raise SettingError(name, text[:40], "a number of seconds more than 0")
    return seconds


def _one_of(
    environ: Mapping[str, str], name: str, choices: tuple[str, ...]
) -> str | None:
    text = environ.get(name)
    if text and text not in choices:
        raise SettingError(name, text[:40], f"one of {', '.join(choices)}")
    return text or None
