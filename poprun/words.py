"""The words for true and false, numbers with their nouns and units, text for JSON."""

# In lower case, as options, files and variables may write them.
TRUE_WORDS = ("yes", "on", "true", "1")
FALSE_WORDS = ("no", "off", "false", "0")


def counted(number: int, noun: str) -> str:
    """Write a number with its noun: 1 IPU, 2 IPUs."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def three_digits(number: float) -> str:
    """Write a number with three digits, or more before its point."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def size(num_bytes: float) -> str:
    """Write a number of bytes: 12 B, 1.5 KiB, 3 MiB."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    # What would be rounded to 1024 is 1 of the next unit.
    while num_bytes >= 1023.5 and len(units) > 1:
        num_bytes /= 1024
        units.pop(0)
    return f"{three_digits(num_bytes)} {units[0]}"


def json_text(words: str) -> str:
    """Return a text that every reader of JSON accepts: bytes of no character escaped.

    An argument, a variable or the name of a file may have any bytes.
    """
    data = words.encode(errors="surrogateescape")
    return data.decode(errors="backslashreplace")
