"""Shell completion: what half a command line can become. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from poprun.options.grammar import find_option, scan_words
from poprun.options.table import BY_NAME
from poprun.options.types import Kind, Option


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One continuation; of kind `file` or `dir`, the shell looks for it itself."""

    text: str
    kind: str = "plain"
    help: str = ""


def complete(words: Sequence[str], begun: str) -> list[Candidate]:
    """Return what the word that has begun can become.

    Raises:
        OptionError: The words before it are no command line.
    """
    # bash makes three words of `--option=value`, and wants to have the last only.
    cut = "=" in (begun, *words[-1:])
    *words, begun = _rejoined([*words, begun])
    scan = scan_words(words)
    if scan.pending:
        return _values(scan.pending, begun, "")
    if scan.program is not None or not begun.startswith("-"):
        return [Candidate(text=begun, kind="file")]
    name, equals, text = begun[2:].partition("=")
    if equals:
        return _values(find_option(name), text, "" if cut else f"--{name}=")
    return [
        Candidate(text=f"--{name}", help=option.help.partition(". ")[0])
        for name, option in BY_NAME.items()
        if f"--{name}".startswith(begun)
    ]


def _rejoined(words: Sequence[str]) -> list[str]:
    joined: list[str] = []
    before = ""
    for word in words:
        after_name = word == "=" and joined and joined[-1].startswith("--")
        if after_name or (before == "=" and joined[-1].endswith("=")):
            joined[-1] += word
        else:
            joined.append(word)
        before = word
    return joined


def _values(option: Option, begun: str, before: str) -> list[Candidate]:
    texts = option.choices
    if option.kind in (Kind.BOOLEAN, Kind.FLAG):
        texts = ("yes", "no")
    if option.kind is Kind.PATH:
        kind = "dir" if option.metavar == "DIR" else "file"
        return [Candidate(text=begun, kind=kind)]
    return [Candidate(text=before + text) for text in texts if text.startswith(begun)]
