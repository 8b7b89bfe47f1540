"""`popctl`: its subcommands."""

from collections.abc import Sequence

import click

from poprun import __version__
from poprun.popctl import attach, doctor, dump, logs, ps, stop, top, trace
from poprun.texts.click_program import carry_out
from poprun.texts.stdout import write


class Popctl(click.Group):
    """A group that lists its subcommands in their order, and has `help`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Like git: "help top" is "top --help".
        if args[:1] == ["help"]:
            args = [*args[1:2], "--help"]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands:
            names = ", ".join(self.commands)
            ctx.fail(
                f"There is no command {args[0][:64]!r}. The commands are: {names}."
            )
        return super().resolve_command(ctx, args)


@click.group(
    "popctl",
    cls=Popctl,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    subcommand_metavar="COMMAND [ARGS]...",
    invoke_without_command=True,
)
@click.option("--version", is_flag=True, help="Show the version.")
@click.pass_context
def popctl(ctx: click.Context, version: bool) -> None:
    """Show and control the poprun jobs that run on this machine."""
    if ctx.invoked_subcommand is not None:
        if version:
            raise click.UsageError("--version cannot be combined with other arguments.")
        return
    if not version:
        raise click.exceptions.NoArgsIsHelpError(ctx)
    write(f"popctl {__version__}\n")


for subcommand in (ps, top, stop, attach, logs, doctor, dump, trace):
    popctl.add_command(subcommand.command)


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command line, and return popctl's exit code.

    Args:
        argv: The arguments of this process if it is None.
    """
    return carry_out(popctl, "popctl", argv)
