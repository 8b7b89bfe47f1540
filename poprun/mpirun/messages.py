"""The text that mpirun prints, cleaned for a report."""

# Open MPI 5 ends some messages with a NUL; escapes have no place in a report.
_UNPRINTABLE = dict.fromkeys([*range(0x09), *range(0x0B, 0x20), 0x7F])


def clean(text: str) -> str:
    """Remove unprintable characters, and empty lines at both ends."""
    return text.translate(_UNPRINTABLE).strip()
