"""The text that mpirun prints, cleaned for a report."""

import re

# Open MPI 5 ends some messages with a NUL; escapes have no place in a report.
_UNPRINTABLE = r"[\x00-\x08\x0b-\x1f\x7f]"


def clean(text: str) -> str:
    """Remove unprintable characters, and empty lines at both ends."""
    return re.sub(_UNPRINTABLE, "", text).strip()
