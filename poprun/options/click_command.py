"""poprun as a click command: its tools find the options, and complete them in a shell.

Of what a job imports, the only module that imports click.
"""

from collections.abc import Callable, Sequence

import click
from click.shell_completion import CompletionItem, get_completion_class

from poprun.errors import PoprunError
from poprun.options import completion
from poprun.options.refusals import refusal
from poprun.options.table import OPTIONS


def make_command(
    carry_out: Callable[[Sequence[str]], int], get_page: Callable[[], str]
) -> click.Command:
    """Return a command with the options of the table.

    Args:
        carry_out: What it calls with its argv when it is invoked.
        get_page: Returns the page of --help.
    """

    class Command(click.Command):
        def get_params(self, ctx: click.Context) -> list[click.Parameter]:
            return [
                click.Option(
                    [option.flag, option.name.replace("-", "_")],
                    help=option.help,
                    metavar=option.metavar,
                    multiple=option.multiple,
                    is_flag=not option.takes_value,
                )
                for option in OPTIONS.values()
            ]

        def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
            ctx.args = args
            return args

        def invoke(self, ctx: click.Context) -> int:
            return carry_out(ctx.args)

        def get_help(self, ctx: click.Context) -> str:
            return get_page()

    return Command("poprun")


def complete(command: click.Command, variable: str, instruction: str) -> str:
    """Return a shell's script, or what the argument at the cursor can become.

    Args:
        variable: The environment variable that the instruction was read from.

    Raises:
        OptionError: The instruction is none of click's.
    """
    name, _, action = instruction.partition("_")
    shell = get_completion_class(name)
    if shell is None or action not in ("source", "complete"):
        raise refusal(
            f"{variable} is {instruction!r}, but must be bash_source, zsh_source "
            "or fish_source."
        )
    answer = shell(command, {}, "poprun", variable)
    if action == "source":
        return answer.source()
    try:
        candidates = completion.complete(*answer.get_completion_args())
    except PoprunError:
        # There is nothing to offer; the error is reported when the line is run.
        return ""
    items = [CompletionItem(c.text, type=c.kind, help=c.help) for c in candidates]
    return "".join(f"{answer.format_completion(i)}\n" for i in items)
