"""Shell completion: the words that may continue a command line. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from poprun.options.grammar import find_option, parse_beginning
from poprun.options.table import BY_NAME, OF_ONE_PROGRAM
from poprun.options.types import Option, read_boolean, read_path, read_wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One continuation; of kind `file` or `dir`, the shell looks for it itself."""

    text: str
    kind: str = "plain"
    help: str = ""


def complete(argv: Sequence[str], prefix: str) -> list[Candidate]:
    """Return the words that begin with a prefix, and may stand after an argv.

    Raises:
        OptionError: The argv is not the beginning of a valid command line.
    """
    # bash splits `--option=value` in three, and expects the last part only.
    is_split = "=" in (prefix, *argv[-1:])
    *argv, prefix = _join_split_options([*argv, prefix])
    beginning = parse_beginning(argv)
    line = beginning.last
    if line.pending:
        return _value_candidates(line.pending, prefix, "")
    if line.in_program or not prefix.startswith("-"):
        return [Candidate(text=prefix, kind="file")]
    name, equals, text = prefix[2:].partition("=")
    if equals:
        return _value_candidates(
            find_option(name), text, "" if is_split else f"--{name}="
        )
    return [
        Candidate(text=f"--{name}", help=option.help.partition(". ")[0])
        for name, option in BY_NAME.items()
        if f"--{name}".startswith(prefix)
        and (not beginning.others or option.name in OF_ONE_PROGRAM)
    ]


def _join_split_options(argv: Sequence[str]) -> list[str]:
    joined: list[str] = []
    before = ""
    for word in argv:
        after_name = word == "=" and joined and joined[-1].startswith("--")
        if after_name or (before == "=" and joined[-1].endswith("=")):
            joined[-1] += word
        else:
            joined.append(word)
        before = word
    return joined


def _value_candidates(option: Option, prefix: str, before: str) -> list[Candidate]:
    texts = option.choices
    if option.read in (read_boolean, read_wait):
        texts = ("yes", "no")
    if option.read is read_path:
        kind = "dir" if option.metavar == "DIR" else "file"
        return [Candidate(text=prefix, kind=kind)]
    return [Candidate(text=before + text) for text in texts if text.startswith(prefix)]
