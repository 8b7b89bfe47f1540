"""Shell completion, by the scripts of click.

No job imports this module, because click takes long to import.
"""

from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem, get_completion_class

from poprun.errors import OptionError, PoprunError
from poprun.options.grammar import find_option, parse_beginning
from poprun.options.table import BY_NAME, OF_ONE_PROGRAM
from poprun.options.types import Option, read_boolean, read_path, read_wait


def answer_shell(variable: str, instruction: str) -> str:
    """Return a shell's script, or the words that can stand at the cursor.

    Args:
        variable: The environment variable that the instruction was read from.

    Raises:
        OptionError: The instruction is none of click's.
    """
    name, _, action = instruction.partition("_")
    shell = get_completion_class(name)
    if shell is None or action not in ("source", "complete"):
        raise OptionError(
            f"{variable} is {instruction!r}, but must be bash_source, zsh_source "
            "or fish_source."
        )
    answer = shell(click.Command("poprun"), {}, "poprun", variable)
    if action == "source":
        return answer.source()
    try:
        items = complete(*answer.get_completion_args())
    except PoprunError:
        # There is nothing to offer; the error is reported when the line is run.
        return ""
    return "".join(f"{answer.format_completion(item)}\n" for item in items)


def complete(argv: Sequence[str], prefix: str) -> list[CompletionItem]:
    """Return the words that begin with a prefix, and may stand after an argv.

    Where the type is `file` or `dir`, the shell looks for the words itself.

    Raises:
        OptionError: The argv is not the beginning of a valid command line.
    """
    # bash splits `--option=value` in three, and expects the last part only.
    is_split = "=" in (prefix, *argv[-1:])
    *argv, prefix = _join_split_options([*argv, prefix])
    beginning = parse_beginning(argv)
    line = beginning.last
    if line.pending:
        return _complete_value(line.pending, prefix, "")
    if line.in_program or not prefix.startswith("-"):
        return [CompletionItem(prefix, type="file")]
    name, equals, text = prefix[2:].partition("=")
    if equals:
        before = "" if is_split else f"--{name}="
        return _complete_value(find_option(name), text, before)
    return [
        CompletionItem(f"--{name}", help=option.help.partition(". ")[0])
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


def _complete_value(option: Option, prefix: str, before: str) -> list[CompletionItem]:
    if option.read is read_path:
        kind = "dir" if option.metavar == "DIR" else "file"
        return [CompletionItem(prefix, type=kind)]
    texts = option.choices
    if option.read in (read_boolean, read_wait):
        texts = ("yes", "no")
    return [CompletionItem(before + text) for text in texts if text.startswith(prefix)]
