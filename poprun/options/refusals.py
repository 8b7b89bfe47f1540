"""The wording of errors about options: a sentence, a hint, "did you mean"."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from poprun.errors import OptionError


def refusal(sentence: str, hint: str = "") -> OptionError:
    """Make an error; the hint, its way out, is shown on a line of its own."""
    error = OptionError(sentence)
    if hint:
        error.add_note(hint)
    return error


def quoted(text: str) -> str:
    """Quote a text, shortened to 100 characters."""
    return repr(text if len(text) <= 100 else text[:100] + "...")


def alternatives(words: Sequence[str]) -> str:
    """Write `a, b or c`."""
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return a question with the name nearest to a mistyped one, or nothing."""
    tidy = word.lower().replace("_", "-")
    nearest = get_close_matches(tidy, list(names), n=1, cutoff=0.7)
    return f"Did you mean {nearest[0]}?" if nearest else ""
