"""Colours on a terminal: whether they are wanted, and the sequences that make them.

Plain ANSI sequences, because importing a library for them would slow each launch down.
"""

import os
from collections.abc import Mapping

BOLD, RED, YELLOW, CYAN = "1", "1;31", "1;33", "36"
STYLES = {"error": RED, "warning": YELLOW, "hint": CYAN}
# The colours of the tags of instances 0, 1, 2 and so on; after the last one the first
# follows again. Red is for errors, and dark blue is hard to read on black.
INSTANCES = ("36", "33", "32", "35", "94", "96", "93", "92", "95")


def uses_color(choice: str, environ: Mapping[str, str], descriptor: int) -> bool:
    """Return whether a descriptor gets text with colours.

    Args:
        choice: The value of --color: always and never override the variables.
    """
    if choice in ("always", "never"):
        return choice == "always"
    # no-color.org and force-color.org say that an empty text is the same as unset.
    if environ.get("NO_COLOR"):
        return False
    if forced := environ.get("FORCE_COLOR"):
        return forced != "0"
    return not is_dumb(environ) and os.isatty(descriptor)


def is_dumb(environ: Mapping[str, str]) -> bool:
    """Return whether a terminal can neither show colours nor erase a line."""
    return environ.get("TERM", "dumb") in ("", "dumb")


def paint(text: str, style: str) -> str:
    """Return a text in a colour, after which comes the one of the terminal."""
    return f"\x1b[{style}m{text}\x1b[0m"


def message(kind: str, text: str, *, has_color: bool) -> str:
    """Return a line of poprun's on stderr: an error, a warning or a hint."""
    word = f"{kind}:"
    return f"poprun: {paint(word, STYLES[kind]) if has_color else word} {text}\n"
