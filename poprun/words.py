"""The words for true and false, and the plurals of nouns."""

# In lower case, as options, files and variables may write them.
TRUE_WORDS = ("yes", "on", "true", "1")
FALSE_WORDS = ("no", "off", "false", "0")


def counted(number: int, noun: str) -> str:
    """Write a number with its noun: 1 IPU, 2 IPUs."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
