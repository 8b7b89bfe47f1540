"""Durations as users write them: plain seconds, or with units, as in 1h30m."""

import re

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_NUMBER = r"([0-9]+\.?[0-9]*|\.[0-9]+)"
# The largest unit first, and each once.
_PATTERN = "".join(rf"(?:{_NUMBER}{unit})?" for unit in _UNITS)
# For errors.
EXAMPLES = "90s, 5m or 1h30m"


def read_duration(text: str) -> float | None:
    """Return the number of seconds that a text stands for; None if it is no duration.

    There are no signs, exponents and spaces: 5, 0.5, 250ms, 90s, 5m, 1h30m, 1.5h, 2d.
    """
    if re.fullmatch(_NUMBER, text):
        return float(text)
    match = re.fullmatch(_PATTERN, text)
    if not text or match is None:
        return None
    values = zip(match.groups(), _UNITS.values(), strict=True)
    return sum(float(number) * unit for number, unit in values if number)
