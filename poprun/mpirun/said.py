"""mpirun's own words, made fit to be read by people."""

import re

# Open MPI 5 ends some messages with a NUL; escapes have no place in a report.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def clean(text: str) -> str:
    """Leave out what no terminal should see, and empty lines at both ends."""
    return _UNPRINTABLE.sub("", text).strip()
