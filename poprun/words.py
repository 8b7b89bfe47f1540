"""The words for true and false, the plurals of nouns, and text for JSON."""

# In lower case, as options, files and variables may write them.
TRUE_WORDS = ("yes", "on", "true", "1")
FALSE_WORDS = ("no", "off", "false", "0")


def counted(number: int, noun: str) -> str:
    """Write a number with its noun: 1 IPU, 2 IPUs."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def json_text(words: str) -> str:
    """Return a text that every reader of JSON accepts: bytes of no character escaped.

    An argument, a variable or the name of a file may have any bytes.
    """
    data = words.encode(errors="surrogateescape")
    return data.decode(errors="backslashreplace")
