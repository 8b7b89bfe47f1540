"""Verbs and nouns as click commands: `vipu list partitions`.

As with the original, the global options stand anywhere, a noun may be singular or
plural, and a flag may have a value: --reconfigurable=false.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import click
from click.core import ParameterSource

from poprun.texts.click_program import Seconds
from poprun.vipu.commands.session import DEFAULT_TIMEOUT_S, Session
from poprun.words import FALSE_WORDS, TRUE_WORDS

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

# The original takes t and f, too.
_TRUE = (*TRUE_WORDS, "t")
_FALSE = (*FALSE_WORDS, "f")


def _store(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Note a global option, if it was given at this place of the command line."""
    name = param.name or ""
    if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
        if value == "":
            # An unset variable of a script must not mean the embedded inventory.
            raise click.BadParameter("It is empty.")
        session = ctx.find_object(Session)
        if session is not None:
            session.given[name] = value


def _global_option(*names: str, **attributes: Any) -> click.Option:
    return click.Option(names, callback=_store, expose_value=False, **attributes)


GLOBAL_OPTIONS: tuple[click.Parameter, ...] = (
    _global_option(
        "--api-host",
        "-H",
        metavar="HOST",
        help="The server. [default: embedded inventory]",
    ),
    _global_option(
        "--api-port",
        type=click.IntRange(1, 65535),
        metavar="PORT",
        help="The port of the server. [default: 8090]",
    ),
    _global_option("--api-user-id", metavar="USER", help="The user on the server."),
    _global_option(
        "--api-access-key", metavar="KEY", help="The user's access key (visible in ps)."
    ),
    _global_option(
        "--api-timeout",
        type=Seconds(0, 86400, min_open=True),
        metavar="TIME",
        help=f"How long to wait for a reply. [default: {DEFAULT_TIMEOUT_S:g}]",
    ),
    _global_option(
        "--config",
        metavar="FILE",
        type=click.Path(dir_okay=False),
        help='A configuration file, with lines such as api-host = "NAME".',
    ),
    _global_option(
        "--json",
        "--showjson",
        "json",
        is_flag=True,
        help="Print JSON instead of tables.",
    ),
    # As `vipu-admin` does.
    _global_option("--admin", "-a", "admin", is_flag=True, hidden=True),
)


class Command(click.Command):
    """A command that takes the global options too."""

    # What it does, if it is a noun of a verb.
    verb = ""
    # What it is called, too.
    aliases: Sequence[str] = ()

    def __init__(self, *args: Any, **attributes: Any) -> None:
        attributes["context_settings"] = HELP
        super().__init__(*args, **attributes)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        help_ = self.get_help_option(ctx)
        return [*self.params, *GLOBAL_OPTIONS, *([help_] if help_ else [])]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _without_values_of_flags(self, ctx, args))


class Group(Command, click.Group):
    """Commands by name or alias: a verb with its nouns, or a program with its verbs.

    Args:
        name: What it is called.
        commands: What it takes.
        of_admins: What it takes only in the program for administrators.
        refusal: Says that there is no such {word} in this {path}, but {names}.
        conjunction: What stands before the last of the names.
    """

    def __init__(
        self,
        name: str,
        commands: Sequence[click.Command],
        of_admins: Sequence[click.Command],
        refusal: str,
        conjunction: str,
        **attributes: Any,
    ) -> None:
        by_name = {str(command.name): command for command in commands}
        super().__init__(name, commands=by_name, **attributes)
        self._of_admins = of_admins
        self._refusal = refusal
        self._conjunction = conjunction

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _find(self.commands.values(), cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None:
            if command := _find(self._of_admins, args[0]):
                words = f"{ctx.command_path} {command.name}".partition(" ")[2]
                ctx.fail(f"Only administrators can do that: vipu-admin {words} --help")
            *most, last = self.commands
            names = f"{', '.join(most)} {self._conjunction} {last}" if most else last
            path, word = ctx.command_path, repr(args[0][:64])
            ctx.fail(self._refusal.format(path=path, word=word, names=names))
        return super().resolve_command(ctx, args)


def _find(commands: Iterable[click.Command], word: str) -> click.Command | None:
    for command in commands:
        if word in (command.name, *getattr(command, "aliases", ())):
            return command
    return None


def _without_values_of_flags(
    command: click.Command, ctx: click.Context, args: Sequence[str]
) -> list[str]:
    """Turn --flag=true into --flag, and leave --flag=false out."""
    flags = {
        name
        for param in command.get_params(ctx)
        if isinstance(param, click.Option) and param.is_flag
        for name in param.opts
        if name.startswith("--")
    }
    kept: list[str] = []
    for place, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if arg == "--":
            return [*kept, *args[place:]]
        if not equals or name not in flags:
            kept.append(arg)
        elif value.lower() in _TRUE:
            kept.append(name)
        elif value.lower() not in _FALSE:
            raise click.BadParameter(
                f"{value!r} is neither true nor false.", param_hint=name
            )
    return kept
