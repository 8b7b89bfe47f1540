"""`popctl`: its subcommands."""

from collections.abc import Mapping, Sequence
from importlib import import_module

import click

from poprun import __version__
from poprun.texts.click_program import carry_out
from poprun.texts.stdout import write

HELP_OPTIONS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

# By name: the module whose `command` it is, which is imported when it is called, and
# one line of help.
SUBCOMMANDS: Mapping[str, tuple[str, str]] = {
    "ps": ("poprun.popctl.ps", "List your jobs that run on this machine."),
    "top": (
        "poprun.popctl.top",
        "Show what the instances of a job are doing, like top.",
    ),
    "stop": ("poprun.popctl.stop", "Stop a job like Ctrl-C."),
    "attach": ("poprun.popctl.attach", "Show the output of an instance from now on."),
    "logs": (
        "poprun.popctl.logs",
        "Print the files that a job has written its output to.",
    ),
    "doctor": ("poprun.popctl.doctor", "Check whether jobs can run here."),
    "dump": ("poprun.popctl.dump", "Print the Python stacks of all instances."),
    "trace": ("poprun.popctl.trace", "Show who waited for whom in a job with --trace."),
}


class Popctl(click.Group):
    """The subcommands of a table, each of which is imported when it is called."""

    def __init__(self, subcommands: Mapping[str, tuple[str, str]]) -> None:
        super().__init__(
            "popctl",
            help="Show and control the poprun jobs that run on this machine.",
            context_settings=HELP_OPTIONS,
            subcommand_metavar="COMMAND [ARGS]...",
            invoke_without_command=True,
            callback=_without_subcommand,
            params=[
                click.Option(["--version"], is_flag=True, help="Show the version.")
            ],
        )
        self._subcommands = subcommands

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # As git help: "help top" is "top --help".
        if args[:1] == ["help"]:
            args = [*args[1:2], "--help"]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._subcommands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._subcommands:
            return None
        module, _ = self._subcommands[cmd_name]
        command: click.Command = import_module(module).command
        return command

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the list of subcommands without importing them."""
        rows = [(name, text) for name, (_, text) in self._subcommands.items()]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self._subcommands:
            names = ", ".join(self._subcommands)
            ctx.fail(
                f"There is no command {args[0][:64]!r}. The commands are: {names}."
            )
        return super().resolve_command(ctx, args)


@click.pass_context
def _without_subcommand(ctx: click.Context, version: bool) -> None:
    """Do what the options of popctl itself ask for."""
    if ctx.invoked_subcommand is not None:
        if version:
            raise click.UsageError("--version cannot be combined with other arguments.")
        return
    if not version:
        raise click.exceptions.NoArgsIsHelpError(ctx)
    write(f"popctl {__version__}\n")


def main(
    argv: Sequence[str] | None = None,
    subcommands: Mapping[str, tuple[str, str]] = SUBCOMMANDS,
) -> int:
    """Carry out a command line, and return popctl's exit code.

    Args:
        argv: By default that of this process.
    """
    return carry_out(Popctl(subcommands), "popctl", argv)
